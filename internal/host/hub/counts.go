package hub

// Counts counts what PullLazily does. Its methods must not block.
type Counts interface {
	ArrivalBegun()
	ArrivalEnded(result string)             // arrived, failed, deleted or stopped
	FrameArrived(awaited bool, bytes int64) // awaited: a sandbox waited for the frame
}

type noCounts struct{}

func (noCounts) ArrivalBegun()            {}
func (noCounts) ArrivalEnded(string)      {}
func (noCounts) FrameArrived(bool, int64) {}
