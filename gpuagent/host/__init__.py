"""What is known about hosts: shared by the isolation drivers and by the installer. Standard library only."""
