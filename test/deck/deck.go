// Package deck draws what a random test does next, such that a short run does everything once.
//
// What the cards do, and the seed, are the test's.
package deck

import (
	"math/rand/v2"
	"slices"
)

// Card is one thing to do.
type Card[T any] struct {
	Weight int
	Do     T
}

// Deck is a shuffled deck of cards. In the first round each card is in it once, and later as often
// as it weighs.
type Deck[T any] struct {
	rng   *rand.Rand
	cards []Card[T]
	left  []T
	dealt bool
}

// New returns a deck that is shuffled by rng.
func New[T any](rng *rand.Rand, cards ...Card[T]) *Deck[T] { return &Deck[T]{rng: rng, cards: cards} }

// Draw takes the next card, of a new round if there is none left.
func (d *Deck[T]) Draw() T {
	if len(d.left) == 0 {
		for _, c := range d.cards {
			n := 1
			if d.dealt {
				n = c.Weight
			}
			d.left = append(d.left, slices.Repeat([]T{c.Do}, n)...)
		}
		d.rng.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
		d.dealt = true
	}
	next := d.left[0]
	d.left = d.left[1:]
	return next
}
