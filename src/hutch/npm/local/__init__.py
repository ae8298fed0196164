"""Packages that are not published: folders, and archives that `npm pack` makes."""
