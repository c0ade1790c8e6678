"""Runs a script where it can do nothing but write frames; everything that it says is a claim, to be checked by others.

engine      the protocol of an engine, and what it raises
frames      length and JSON: what both ends of a channel read
quickjs     the engine that is used: QuickJS in locked-down processes
zygote      the program that those are forked from; it loads the three below and nothing of the coordinator
child       one script's process
lockdown    what a process gives up before it sees a script
seccomp     the system calls that are left to it
prelude.js  what a script sees
"""
