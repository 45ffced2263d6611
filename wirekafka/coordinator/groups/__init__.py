"""The group coordinator: groups of every type, their members and their committed offsets."""
