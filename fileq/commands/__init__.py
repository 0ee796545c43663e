"""What the command line does once it has parsed its arguments. Must never parse arguments or import argparse."""
