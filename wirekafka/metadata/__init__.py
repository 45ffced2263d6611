"""Topics, settings and features of this broker, and the journal that stores them."""
