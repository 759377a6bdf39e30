package difftree

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// The sides of a merge, as indexes of its disks.
const (
	sideBase = iota
	sideFrom // the side whose changes are applied
	sideOnto // the side that receives the changes
)

// pairsOfMerge are the comparisons of a merge. A comparison of two disks uses only the first pair.
var pairsOfMerge = [3][2]int{{sideBase, sideFrom}, {sideBase, sideOnto}, {sideOnto, sideFrom}}

// change is a path at which the sides "from" and "onto" differ.
type change struct {
	entry *diffproto.Entry // Old is the file of the side "onto", New is the file of the side "from"
	ours  bool             // whether the side "from" has changed the file since the base
	apply bool             // whether the side "onto" gets the file of the side "from"
}

// goneDir reports whether only the side "onto" has a directory at the path. Applying the change
// removes everything in this directory.
func (c *change) goneDir() bool {
	return c.entry.Old.Type == diffproto.Directory && c.entry.New.Type != diffproto.Directory
}

// newDir reports whether only the side "from" has a directory at the path. Nothing can be made in
// this directory unless the change is applied.
func (c *change) newDir() bool {
	return c.entry.Old.Type != diffproto.Directory && c.entry.New.Type == diffproto.Directory
}

// merger collects the changes of a merge.
type merger struct {
	roots   [3]int
	changed []*changes                // for each of pairsOfMerge
	paths   []string                  // in the order of a walk; none is below another
	ours    map[string]diffproto.Type // paths that the side "from" has changed, and the type of each file in the base
	both    map[string]bool           // paths in the field ours that the side "onto" has changed too
	list    []*change                 // in the order of a walk
	// changes above the present path for which goneDir or newDir is true, including changes that
	// are not in list
	above   []*change
	held    int // bytes of the paths in the field ours
	skipped uint64
}

// merge finds the changes of one side that another side lacks, and sends them to the host. If the request asks
// for it, an archive follows.
func merge(roots [3]int, req diffproto.Request, changed []*changes, out io.Writer) error {
	m := &merger{roots: roots, changed: changed, ours: make(map[string]diffproto.Type), both: make(map[string]bool)}
	var err error
	if m.paths, err = distinct(req.Merge.Paths); err == nil {
		err = m.compare()
	}
	if refused := (*diffproto.RefusedError)(nil); errors.As(err, &refused) && refused.Field == "path" {
		return &diffproto.RefusedError{Field: "paths", Reason: refused.Reason}
	}
	if err != nil {
		return err
	}
	if m.skipped > 0 {
		return &diffproto.RefusedError{Field: "paths", Reason: fmt.Sprintf("%d files cannot be compared, because a"+
			" file system is damaged or their paths are longer than %d bytes: name other files or directories", m.skipped,
			diffproto.MaxPath)}
	}
	conflicts := resolve(m.list, req.Merge.Prefer)
	refuses := conflicts > 0 && req.Merge.Prefer == diffproto.Refuse
	pack := req.Tar && !refuses
	if pack {
		if err := m.check(); err != nil {
			return err
		}
	}
	if err := m.send(req.MaxEntries, req.Tar && refuses, conflicts, out); err != nil || !pack {
		return err
	}
	pieces := diffproto.NewPieceWriter(out)
	if err := m.pack(pieces); err != nil {
		return err
	}
	return pieces.Close()
}

// distinct checks the paths of a request. It sorts them in the order of a walk, and drops every
// path that is below another path of the request. Without paths it returns the root.
func distinct(paths []string) (list []string, err error) {
	if len(paths) == 0 {
		return []string{"/"}, nil
	}
	sorted := slices.Clone(paths)
	slices.SortFunc(sorted, func(a, b string) int { return strings.Compare(diffproto.InOrder(a), diffproto.InOrder(b)) })
	for _, p := range sorted {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return nil, &diffproto.RefusedError{Field: "paths", Reason: fmt.Sprintf("%q: want clean, absolute paths", p)}
		}
		if n := len(list); n == 0 || !diffproto.IsBelow(p, list[n-1]) {
			list = append(list, p)
		}
	}
	return list, nil
}

// compare compares the three pairs of trees.
func (m *merger) compare() error {
	for i, add := range []func(*diffproto.Entry) error{m.addFrom, m.addOnto, m.add} {
		pair := pairsOfMerge[i]
		for _, p := range m.paths {
			done, err := compare([2]int{m.roots[pair[0]], m.roots[pair[1]]},
				diffproto.Request{Path: p, MaxEntries: math.MaxUint32}, m.changed[i], add)
			m.skipped += done.Skipped
			if none := (*missingError)(nil); errors.As(err, &none) && (i > 0 || m.hasPath(p)) {
				continue // another side has the path
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// hasPath reports whether the side "onto" has a file at a path.
func (m *merger) hasPath(p string) bool {
	_, err := m.state(p)
	return err == nil
}

// withoutSocket removes a socket of the side "from", because a socket is useless without its
// program, and a tar archive cannot have it.
func withoutSocket(e *diffproto.Entry) {
	if e.New.Type == diffproto.Socket {
		e.New = diffproto.Node{}
	}
}

// addFrom adds a change that the side "from" has made since the base.
func (m *merger) addFrom(e *diffproto.Entry) error {
	if withoutSocket(e); e.Old.Type == diffproto.Absent && e.New.Type == diffproto.Absent {
		return nil
	}
	m.ours[e.Path] = e.Old.Type
	if m.held += len(e.Path); len(m.ours) > maxPacked || m.held > maxPaths {
		return tooMany("the side from has changed", maxPacked, maxPaths)
	}
	return nil
}

func tooMany(what string, files, bytes int) error {
	return &diffproto.RefusedError{Field: "paths", Reason: fmt.Sprintf(
		"%s more than %d files or %d MiB of paths: name files or directories", what, files, bytes>>20)}
}

// addOnto adds a change that the side "onto" has made since the base.
func (m *merger) addOnto(e *diffproto.Entry) error {
	if _, ours := m.ours[e.Path]; ours {
		m.both[e.Path] = true
	}
	return nil
}

// add adds a difference between the sides "onto" and "from". It drops most changes that only "onto"
// has made, because there may be many.
func (m *merger) add(e *diffproto.Entry) error {
	base, ours := m.ours[e.Path]
	if withoutSocket(e); e.Old.Type == diffproto.Absent && e.New.Type == diffproto.Absent {
		return nil
	}
	for n := len(m.above); n > 0 && !diffproto.IsBelow(e.Path, m.above[n-1].entry.Path); n = len(m.above) {
		m.above = m.above[:n-1]
	}
	e.Base, e.Conflict = base, m.both[e.Path]
	c := &change{entry: e, ours: ours, apply: ours && !e.Conflict}
	isUnderGone := slices.ContainsFunc(m.above, func(a *change) bool { return a.ours && a.goneDir() })
	if c.goneDir() || c.newDir() {
		m.above = append(m.above, c)
	}
	if ours || isUnderGone || c.newDir() {
		m.list = append(m.list, c)
	}
	if len(m.list) > 2*diffproto.MaxMerged {
		return tooMany("the sides differ in", 2*diffproto.MaxMerged, maxPaths)
	}
	return nil
}

// resolve decides which changes are applied, and marks the conflicts. It returns the number of conflicts.
//
// A change of the side "from" is applied if the side "onto" still has the file of the base. If
// "onto" has changed the file too, there is a conflict, unless both files are equal. Equal files
// are not in the list. There is also a conflict in two cases in which a path would lack the
// directories above it:
//
//   - "from" has removed or replaced a directory, and "onto" has changed or added a file below it.
//   - "onto" has removed or replaced a directory, and "from" has changed or added a file below it.
func resolve(list []*change, prefer diffproto.Prefer) (conflicts uint64) {
	withAbove(list, func(c *change, above []*change) {
		if c.apply || c.entry.Old.Type == diffproto.Absent {
			return
		}
		for _, dir := range above {
			if dir.ours && dir.goneDir() {
				dir.apply, dir.entry.Conflict = false, true
			}
		}
	})
	withAbove(list, func(c *change, above []*change) {
		blocks := func(dir *change) bool { return dir.newDir() && !dir.apply }
		if c.apply && c.entry.New.Type != diffproto.Absent && slices.ContainsFunc(above, blocks) {
			c.apply, c.entry.Conflict = false, true
		}
	})
	if prefer == diffproto.PreferFrom {
		preferFrom(list)
	}
	for _, c := range list {
		if c.entry.Conflict {
			conflicts++
			c.entry.Kept = prefer == diffproto.PreferOnto
		}
	}
	return conflicts
}

// preferFrom applies the changes with conflicts, and the changes that they need.
func preferFrom(list []*change) {
	for _, c := range list {
		c.apply = c.apply || c.entry.Conflict
	}
	withAbove(list, func(c *change, above []*change) {
		for _, dir := range above {
			switch {
			case dir.apply && dir.goneDir() && c.entry.Old.Type != diffproto.Absent && !c.apply:
				c.apply, c.entry.Conflict = true, true // "onto" loses the file with its directory
			case c.apply && c.entry.New.Type != diffproto.Absent && dir.newDir() && !dir.apply:
				dir.apply, dir.entry.Conflict = true, true // "onto" gets the directory back
			}
		}
	})
}

// withAbove calls f(c, above) once for each change c in the list, whose order is that of a walk.
// The second argument has the changes of those parent directories of c that only one side has.
func withAbove(list []*change, f func(c *change, above []*change)) {
	var above []*change
	for _, c := range list {
		for n := len(above); n > 0 && !diffproto.IsBelow(c.entry.Path, above[n-1].entry.Path); n = len(above) {
			above = above[:n-1]
		}
		f(c, above)
		if c.goneDir() || c.newDir() {
			above = append(above, c)
		}
	}
}

// check returns an error if the changes are too many for an archive, or if an archive cannot have one of them.
func (m *merger) check() error {
	x := &exporter{root: m.roots[sideFrom]}
	files, held := 0, 0
	for _, c := range m.list {
		if !c.apply {
			continue
		}
		files++
		if held += len(c.entry.Path); files > diffproto.MaxMerged || held > diffproto.MaxMergedPaths {
			return tooMany("there are changes of", diffproto.MaxMerged, diffproto.MaxMergedPaths)
		}
		if c.entry.New.Type == diffproto.Absent {
			continue
		}
		if slices.Contains(m.paths, c.entry.Path) && c.entry.Path != "/" {
			if err := m.hasParent(c.entry.Path); err != nil {
				return err
			}
		}
		f, err := x.open(c.entry.Path)
		if err == nil {
			if f.close(); f.lacks {
				err = errors.New("it has an extended attribute with = in its name, or more than 512 KiB of them")
			}
		}
		if err != nil {
			return &diffproto.RefusedError{Field: "paths", Reason: fmt.Sprintf("%q cannot be copied: %v: name other files"+
				" or directories", c.entry.Path, err)}
		}
	}
	return nil
}

// hasParent returns an error if the side "onto" has no directory for a path of the request.
func (m *merger) hasParent(p string) error {
	dir, err := openAbove(m.roots[sideOnto], p)
	if err != nil {
		return &diffproto.RefusedError{Field: "paths", Reason: fmt.Sprintf(
			"%q: the sandbox that receives the changes has no such directory: name a directory above it", path.Dir(p))}
	}
	unix.Close(dir)
	return nil
}

// send sends the changes and the conflicts, or only the conflicts, and then the numbers of both.
func (m *merger) send(most uint32, onlyConflicts bool, conflicts uint64, out io.Writer) error {
	done := diffproto.Done{Conflicts: conflicts}
	for _, c := range m.list {
		if !c.apply && !c.entry.Conflict {
			continue
		}
		switch {
		case !c.apply:
		case c.entry.Old.Type == diffproto.Absent:
			done.Added++
		case c.entry.New.Type == diffproto.Absent:
			done.Deleted++
		default:
			done.Changed++
		}
		if most == 0 || onlyConflicts && !c.entry.Conflict {
			continue
		}
		most--
		c.entry.Omitted = diffproto.NotOmitted
		if err := diffproto.WriteEntry(out, c.entry); err != nil {
			return err
		}
	}
	return diffproto.WriteDone(out, done)
}

// pack writes the archive of the changes that are applied.
func (m *merger) pack(out io.Writer) error {
	x := &exporter{root: m.roots[sideFrom]}
	buffered := bufio.NewWriterSize(out, 256<<10)
	p := &packer{raw: buffered, tar: tar.NewWriter(buffered), links: make(map[uint64]string)}
	n := 0
	for _, c := range m.list {
		if !c.apply {
			continue
		}
		n++
		var onto diffproto.State
		if c.entry.Old.Type != diffproto.Absent {
			var err error
			if onto, err = m.state(c.entry.Path); err != nil {
				return err
			}
		}
		if err := p.addChange(x, c, onto); err != nil {
			return fmt.Errorf("pack %q: %w", c.entry.Path, err)
		}
	}
	end := &tar.Header{Typeflag: tar.TypeXGlobalHeader,
		PAXRecords: map[string]string{diffproto.RecordEnd: strconv.Itoa(n)}}
	return errors.Join(p.tar.WriteHeader(end), p.tar.Close(), buffered.Flush())
}

// addChange adds a change to the archive. The change replaces a file with the given state.
func (p *packer) addChange(x *exporter, c *change, onto diffproto.State) error {
	if c.entry.New.Type == diffproto.Absent {
		return p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(c.entry.Path, "/"),
			Format:     tar.FormatPAX,
			PAXRecords: map[string]string{diffproto.RecordOnto: onto.String(), diffproto.RecordDelete: "1"}})
	}
	f, err := x.open(c.entry.Path)
	if err != nil {
		return err
	}
	defer f.close()
	f.header.PAXRecords[diffproto.RecordOnto] = onto.String()
	return p.add(f)
}

// state returns the state of a file of the side "onto".
func (m *merger) state(p string) (diffproto.State, error) {
	dir, err := openAbove(m.roots[sideOnto], p)
	if err != nil {
		return diffproto.State{}, err
	}
	defer unix.Close(dir)
	name := path.Base(p)
	if p == "/" {
		name = "."
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return diffproto.State{}, err
	}
	return diffproto.State{Inode: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Size: st.Size,
		MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano()}, nil
}

// openAbove opens the directory of the file at an absolute path, without following any symbolic link.
func openAbove(root int, p string) (int, error) {
	above := strings.Trim(path.Dir(p), "/")
	if above == "" {
		above = "."
	}
	return unix.Openat2(root, above, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
}
