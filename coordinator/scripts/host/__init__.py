"""What a script may have done, and what comes of it: all policy is here, on the coordinator's side (C23 to C28).

limits      how much of everything a script may use
calls       what a script says, checked, as steps
messages    the frames of a script's process, checked field by field
watchdog    a script that does not come to rest is ended
answers     what a script's calls are answered with, and what it was answered before
failures    the cause of every null
ending      how a run ends
told        who hears what happens
session     one script from its first line to its last
"""
