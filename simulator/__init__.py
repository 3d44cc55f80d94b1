"""The control plane in virtual time: hosts, network, costs and programs on SimPy."""
