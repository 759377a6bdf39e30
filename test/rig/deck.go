// Package rig contains the common parts of the random tests, which are soak and both kinds of
// torture: the deck of actions, and the report.
package rig

import (
	"math/rand/v2"
	"slices"
)

// Card is one action.
type Card[T any] struct {
	Weight int
	Do     T
}

// Deck is a shuffled deck of cards. The first round has each card once, so that even a short run
// performs each action. In later rounds, each card occurs as often as its weight says.
type Deck[T any] struct {
	rng   *rand.Rand
	cards []Card[T]
	left  []T
	dealt bool
}

// NewDeck returns a deck that is shuffled by rng.
func NewDeck[T any](rng *rand.Rand, cards ...Card[T]) *Deck[T] {
	return &Deck[T]{rng: rng, cards: cards}
}

// Draw takes the next card. If no card is left, a new round begins.
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
