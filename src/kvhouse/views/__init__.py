"""What people see in the terminal. Every number says whether it is exact, measured or modelled."""
