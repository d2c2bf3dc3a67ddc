"""Everything with a goal, by area, in one report."""
