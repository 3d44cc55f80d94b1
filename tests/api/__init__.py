"""The API, the same programs on every backend of raytwin's own."""
