"""How fast spoolctl is, next to the limits of the machine and to other queues."""
