package dirsync

import (
	"context"
	"fmt"
	"path"
	"slices"
)

// pushAll sends changes of the host in batches.
func (s *Sync) pushAll(ctx context.Context, names []string) (changed bool, err error) {
	for begin := 0; begin < len(names) && err == nil; {
		end, size := begin, int64(0)
		for end < len(names) && end-begin < batchFiles && (end == begin || size+s.host[names[end]].Size <= batchBytes) {
			size += s.host[names[end]].Size
			end++
		}
		batch := names[begin:end:end]
		if len(batch) > 0 && s.host[batch[0]].Kind == Absent {
			for end < len(names) && s.host[names[end]].Kind == Absent { // a removed tree is one batch
				end++
			}
			batch = names[begin:end:end]
		}
		begin = end
		var done bool
		done, err = s.push(ctx, batch)
		changed = changed || done
	}
	return changed, err
}

// push sends one batch. If changes come back, it lists the directories of the batch again before
// and after it sends the batch, and skips files that the guest has changed since the plan was made.
func (s *Sync) push(ctx context.Context, batch []string) (changed bool, err error) {
	if s.Both {
		if err := s.relist(ctx, s.dirsOf(batch)); err != nil {
			return false, err
		}
	}
	var removed, replaced, sent []string
	for _, rel := range batch {
		host, guest := s.host[rel], s.guest[rel]
		up := s.guest[path.Dir(rel)].Kind
		if a := s.action(rel); a != Push && (a != Compare || s.Prefer != "host") || up != Absent && up != Dir {
			s.again = true // the guest has changed the file, or the directory that has the file
			continue
		}
		switch {
		case host.Kind == Absent:
			removed = append(removed, rel)
			continue
		case host.Size > maxFile:
			s.leftOut(rel, "it is larger than 1 GiB")
			continue
		case guest.Kind != Absent && guest.Kind != host.Kind:
			replaced = append(replaced, rel)
		}
		sent = append(sent, rel)
	}
	if err := s.removeGuest(ctx, removed); err != nil {
		return false, err
	}
	for _, rel := range replaced {
		gone, err := s.clearGuest(ctx, rel)
		if err != nil {
			return true, err
		}
		if !gone {
			sent = slices.DeleteFunc(sent, func(name string) bool { return name == rel })
		}
	}
	if len(sent) == 0 {
		return len(removed) > 0, nil
	}
	for _, rel := range sent {
		s.sending[rel] = true
	}
	got, err := s.send(ctx, sent)
	if err != nil {
		return true, err
	}
	for _, rel := range sent {
		delete(s.sending, rel)
	}
	for rel, now := range got {
		s.host[rel], s.guest[rel] = now.Host, now.Guest
	}
	if s.Both {
		if err := s.relist(ctx, s.dirsOf(sent)); err != nil {
			return true, err
		}
	}
	for _, rel := range sent {
		now, ok := got[rel]
		if !ok {
			continue
		}
		// Use the listed entry: it has the time of the new link, or the mode that a directory has
		// kept.
		if there := s.guest[rel]; there.Kind == now.Guest.Kind && (there.Kind == Link && there.Size == now.Guest.Size ||
			there.Kind == Dir) {
			now.Guest = there
		}
		s.agree(rel, now)
		s.say("to_sandbox", rel, "")
	}
	return len(got) > 0, nil
}

// clearGuest removes a file or directory of the guest, so that a file of another type can replace it. It
// returns false, and removes nothing, if the directory has files that are not known or have changed.
func (s *Sync) clearGuest(ctx context.Context, rel string) (gone bool, err error) {
	if s.guest[rel].Kind == Dir {
		known := map[string]bool{}
		for name := range s.guest {
			known[name] = below(name, rel)
		}
		all, other, err := s.onlyDoomed(ctx, rel, known)
		if err == nil && !all && s.Prefer == "host" && (other == "" || s.ignored(other)) {
			s.leftOut(rel, fmt.Sprintf("a file cannot replace the directory in the sandbox, which has files that are not "+
				"synced, such as %q", other))
			return false, nil
		}
		if err != nil || !all {
			delete(s.base, rel) // without history, the next plan finds a conflict
			s.again = true
			s.note(func(h *hints) { h.allGuest = true })
			return false, err
		}
	}
	if err := s.cl.RemoveFile(ctx, s.ID, s.remote(rel)); err != nil {
		return false, err
	}
	s.forget(s.guest, rel)
	return true, nil
}

// dirsOf returns the directories of some paths. If the guest lacks a directory, the result has the
// nearest parent that exists in the guest.
func (s *Sync) dirsOf(names []string) (dirs []string) {
	seen := map[string]bool{}
	for _, rel := range names {
		dir := path.Dir(rel)
		for dir != "." && s.guest[dir].Kind != Dir {
			dir = path.Dir(dir)
		}
		if !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
