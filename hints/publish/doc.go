// Package publish tells routers what an engine holds.
//
// A Publisher follows an engine's inventory and hands each change, in batches, to a
// Sink: the publisher of vLLM's events or of Dynamo's plane (package events), or the
// host's own. Keys become hashes by a keys.Table, which the publisher keeps as the
// engine is; so one subscription serves both, and a description (keys.Table.Describe)
// is there when the event that it belongs to is made.
//
// Rules:
//
//	P1  A router that applies all events holds at every moment, for each tier, the
//	    hashes that the engine held at some moment not long ago, or (between Cleared
//	    and the end of the snapshot that follows) fewer; in the end, those it holds.
//	P2  A hash is stored in a tier once, and removed once, however often its key was
//	    deposited and whatever other keys have it (case H3). Each event names its
//	    tier (H4); changes in a tier that routers have no name for are not published.
//	P3  The order of an engine's changes is kept. Within a snapshot a block comes
//	    after its parent.
//	P4  What a block's place in its chain is, or what its tokens are, is never
//	    guessed: a block of which that is not known is published by its hash alone
//	    and counted (Stats.Undescribed). Routers cannot match prefixes with it.
//	P5  After a gap of the subscription, and at the beginning, the engine's snapshot
//	    counts: see Recovery.
//	P6  A batch that the sink refuses is offered again until it is taken, so that
//	    none is lost or passed by another. Meanwhile changes wait in the
//	    subscription, and when that overflows P5 applies.
package publish
