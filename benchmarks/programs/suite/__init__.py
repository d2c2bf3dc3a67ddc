"""Everything with a goal, area by area, and one report of it."""
