"""The web console. A view is what one address of it shows; a page is a part of a list."""
