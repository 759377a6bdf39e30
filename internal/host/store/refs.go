package store

// refs counts the references that keep an entry.
type refs struct {
	lease  int // number of leases, which keep the files open and prevent a deletion
	pin    int // number of suspended sandboxes, which prevent a deletion but do not keep the files open
	follow int // number of followers, which keep the files but let the snapshot lose its name, see Follow
}

// keeping returns the number of references that prevent the deletion of the snapshot.
func (r *refs) keeping() int { return r.lease + r.pin }

// using returns the number of references that need the snapshot's files.
func (r *refs) using() int { return r.lease + r.follow }
