package vmmproto

// StillCopying is part of the error of a branch that a VMM refuses because it copies the live branch before it. Errors
// cross the control socket as text.
const StillCopying = "still being copied"
