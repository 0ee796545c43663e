"""What the admin commands do: looks and repairs on a broker's operator faces, as plain values that are printed as
text or as JSON. Never parses a command line, never opens a broker, never prints."""
