package history

import "time"

// ring holds the newest points of a series. Its buffer grows with the number of points, up to a
// maximum.
type ring struct {
	width int // number of figures in a point
	buf   []cell
	v     []float32 // figures of the points: width figures for each cell of buf
	start int       // index of the oldest point
	n     int
}

// cell is the time of a point, in tenths of a second since the recorder was made.
type cell uint32

const tick = time.Second / 10

func cellOf(at time.Duration) cell { return cell(at / tick) }

// push adds a point. If the ring would then have more than the given number of points, push drops
// the oldest points.
func (r *ring) push(at cell, values []float32, most int) {
	for r.n >= max(most, 1) {
		r.drop()
	}
	if r.n == len(r.buf) || len(r.buf) > most {
		r.resize(min(max(2*r.n, minRing), most))
	}
	i := (r.start + r.n) % len(r.buf)
	r.buf[i] = at
	copy(r.v[i*r.width:], values)
	r.n++
}

// minRing is the number of points that the first buffer has room for. It is small, because some
// programs make many sandboxes that exist for only a few seconds.
const minRing = 16

// resize replaces the buffer with a buffer for the given number of points.
func (r *ring) resize(size int) {
	buf, v := make([]cell, size), make([]float32, size*r.width)
	for i := range r.n {
		at, values := r.at(i)
		buf[i] = at
		copy(v[i*r.width:], values)
	}
	r.buf, r.v, r.start = buf, v, 0
}

// drop removes the oldest point.
func (r *ring) drop() {
	r.start, r.n = (r.start+1)%len(r.buf), r.n-1
}

// forget removes the points before a time. A ring without points has no buffer.
func (r *ring) forget(before cell) {
	for r.n > 0 && r.buf[r.start] < before {
		r.drop()
	}
	if r.n == 0 {
		*r = ring{width: r.width}
	}
}

// at returns the i-th point, beginning with the oldest. The values are valid until the next change.
func (r *ring) at(i int) (cell, []float32) {
	i = (r.start + i) % len(r.buf)
	return r.buf[i], r.v[i*r.width : (i+1)*r.width]
}

// bytes returns the size of the buffer.
func (r *ring) bytes() int { return 4 * (cap(r.buf) + cap(r.v)) }
