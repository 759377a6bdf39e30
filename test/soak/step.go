package soak

// step is one action of a client.
type step struct {
	weight int
	do     func(*worker, *box)
}

// steps returns the possible actions on a sandbox in the given state.
func steps(state string) []step {
	switch state {
	case paused:
		return []step{
			{5, func(w *worker, b *box) { w.resume(b) }},
			{2, (*worker).branch},
			{1, (*worker).suspend},
			{1, (*worker).execRefused},
			{1, func(w *worker, b *box) { w.kill(b) }},
		}
	case suspended:
		return []step{
			{6, func(w *worker, b *box) { w.resume(b) }},
			{1, (*worker).execRefused},
			{1, func(w *worker, b *box) { w.kill(b) }},
		}
	}
	return []step{
		{4, func(w *worker, b *box) { w.mark(b) }},
		{3, (*worker).writeFile},
		{1, (*worker).removeFile},
		{4, (*worker).branch},
		{2, (*worker).forkBox},
		{3, (*worker).rollback},
		{3, (*worker).suspend},
		{2, (*worker).pause},
		{1, func(w *worker, b *box) { w.kill(b) }},
	}
}

// step performs one action. If the sandbox is running afterwards, step verifies it.
func (w *worker) step() {
	switch n := w.rng.IntN(20); {
	case len(w.own.boxes) == 0 || n < 3 && len(w.own.boxes) < w.cfg.Boxes:
		w.forkSomething()
		return
	case n == 3:
		w.meddle()
		return
	case n == 4 || len(w.own.snapshots) >= w.cfg.Snapshots:
		if tags := w.own.tags(); len(tags) > 0 {
			w.removeSnapshot(tags[w.rng.IntN(len(tags))], w.rng.IntN(2) == 0)
			return
		}
	}
	b := w.own.boxes[w.rng.IntN(len(w.own.boxes))]
	all, total := steps(b.state), 0
	for _, s := range all {
		total += s.weight
	}
	n := w.rng.IntN(total)
	for _, s := range all {
		if n -= s.weight; n < 0 {
			s.do(w, b)
			break
		}
	}
	if w.has(b) && b.state == running && w.rng.IntN(2) == 0 {
		w.verify(b)
	}
}

// has reports whether the client still knows a sandbox.
func (w *worker) has(b *box) bool {
	for _, x := range w.own.boxes {
		if x == b {
			return true
		}
	}
	return false
}

// forkSomething forks the base or one of the client's snapshots.
func (w *worker) forkSomething() {
	tag, p := w.cfg.Base, w.base
	if tags := w.own.tags(); len(tags) > 0 && w.rng.IntN(3) > 0 {
		tag = tags[w.rng.IntN(len(tags))]
		p = w.own.snapshots[tag]
	}
	room := w.cfg.Boxes - len(w.own.boxes)
	w.fork(tag, p, 1+w.rng.IntN(min(2, room)))
}

// mode chooses the mode of a branch at random.
func (w *worker) mode() string { return []string{"live", "live", "diff", "full"}[w.rng.IntN(4)] }
