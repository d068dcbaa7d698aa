"""How fast this machine is, and which one it is."""
