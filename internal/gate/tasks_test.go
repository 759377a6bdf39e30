package gate

import (
	"testing"
	"testing/synctest"
)

// Close waits for tasks that have begun and prevents new tasks.
func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tasks Tasks
		ctx, end, closed := tasks.Context(), make(chan struct{}), false
		go tasks.Do(func() { <-end })
		synctest.Wait()
		go func() { tasks.Close(); closed = true }()
		synctest.Wait()
		if closed || ctx.Err() == nil {
			t.Errorf("closed amid the work: %v; the context: %v", closed, ctx.Err())
		}
		tasks.Do(func() { t.Error("work began after Close") })
		close(end)
		synctest.Wait()
		if !closed {
			t.Error("not closed after the work")
		}
	})
}
