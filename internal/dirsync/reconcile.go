package dirsync

import "time"

// Kind is the type of a file.
type Kind byte

// Kinds of files. Other is a file that is never synced, such as a device, or a file that cannot be
// read.
const (
	Absent Kind = 0
	File   Kind = 'f'
	Dir    Kind = 'd'
	Link   Kind = 'l'
	Other  Kind = 'o'
)

// Entry describes a file of one side. Two equal entries of the same side mean that the file has not
// changed. The zero Entry means that there is no file.
type Entry struct {
	Kind Kind
	Mode uint32 // permission bits; 0 for links
	Size int64  // bytes; 0 for directories
	Time int64  // modification time in nanoseconds since 1970; 0 for directories
	Link string // target of a link; empty if the guest does not report it
}

func (e Entry) modified() time.Time { return time.Unix(0, e.Time) }

// Agreed holds the entries of both sides when they last had the same content. If both are zero, the
// path has no history.
type Agreed struct{ Host, Guest Entry }

// Action is the step that brings the two sides of a path into sync.
type Action int

const (
	Nothing  Action = iota // the sides are in sync, or the difference stays
	Push                   // the host's side replaces the guest's, or removes it
	Pull                   // the guest's side replaces the host's, or removes it
	Agree                  // the sides are equal: only the agreement is new
	Compare                // the contents decide between Agree and Conflict
	Conflict               // both sides have changed
	Skip                   // one side cannot be synced
)

// Reconcile returns the action for one path. It depends only on its parameters. If the parameter
// both is true, changes of the guest come back. If it is false, they stay in the guest until the
// file changes on the host. Without history nothing is removed.
func Reconcile(both bool, base Agreed, host, guest Entry) Action {
	known := base != Agreed{}
	hostChanged, guestChanged := host != base.Host, guest != base.Guest
	switch {
	case host.Kind == Other || guest.Kind == Other:
		return Skip
	case known && !hostChanged && !guestChanged, host == Entry{} && guest == Entry{} && !known:
		return Nothing
	case host == Entry{} && guest == Entry{}:
		return Agree
	case !both:
		return oneWay(known, hostChanged, host, guest)
	case known && !guestChanged, !known && guest == Entry{}:
		return Push
	case known && !hostChanged, !known && host == Entry{}:
		return Pull
	}
	return compare(host, guest)
}

// oneWay returns the action for a path that has changed, in the mode in which changes of the guest
// do not come back.
func oneWay(known, hostChanged bool, host, guest Entry) Action {
	switch {
	case !known && host == Entry{}, known && !hostChanged:
		return Nothing
	case !known && guest.Kind == Dir && host.Kind != Dir:
		return Conflict // a push would remove files that the host never had
	case compare(host, guest) == Agree && host.Mode == guest.Mode:
		return Agree
	}
	return Push
}

// compare returns the action for a path that may have changed on both sides.
func compare(host, guest Entry) Action {
	switch {
	case host.Kind != guest.Kind:
		return Conflict
	case host.Kind == Dir:
		return Agree
	case host.Size != guest.Size:
		return Conflict
	case host.Kind == File && host.Time == guest.Time:
		return Agree
	}
	return Compare
}
