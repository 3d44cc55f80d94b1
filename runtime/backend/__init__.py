"""What stands between the API and whoever runs the program."""
