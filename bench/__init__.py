"""Speed, as ratios to something that runs beside it in the same minute: absolute figures say more about the machine."""
