package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// VanishSpec says what a client that will be killed holds.
type VanishSpec struct {
	Socket string   // of its node
	Keys   [][]byte // that it claims
}

// Vanish is a client in a process of its own: it takes views, claims and reservations,
// says so on a line of out, and waits to be killed; it gives nothing back.
func Vanish(ctx context.Context, spec VanishSpec, out io.Writer) error {
	cl, err := client.Dial(ctx, client.Options{Addr: "unix:" + spec.Socket, Name: "soak vanishing"})
	if err != nil {
		return err
	}
	s, err := cl.Attach(ctx, 1<<20)
	if err != nil {
		return err
	}
	views, err := s.Views(ctx, spec.Keys...)
	if err != nil {
		return err
	}
	claims, err := cl.Fetch(ctx, spec.Keys)
	if err != nil {
		return err
	}
	if _, err := s.Reserve(ctx, []byte("vanishing"), 64<<10, wire.VerbSet); err != nil && !errors.Is(err, client.ErrCapacity) {
		return err
	}
	n := 0
	for i := range views {
		if views[i].OK() {
			n++
		}
		if claims[i].Status == wire.StatusOK {
			n++
		}
	}
	fmt.Fprintln(out, "holding", n)
	<-ctx.Done()
	return nil
}

// vanishWorker runs such clients and kills them.
type vanishWorker struct{ worker }

func (w *vanishWorker) work(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(w.rng.IntN(int(w.run.o.vanish)))):
		}
		w.once(ctx)
	}
}

func (w *vanishWorker) once(ctx context.Context) {
	spec, err := json.Marshal(VanishSpec{w.node.socket, keysOf(w.chain().blocks)})
	if err != nil {
		panic(err) // plain fields: cannot fail
	}
	cmd := exec.Command(w.run.o.Exe, "bench", "soak-client", string(spec))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.run.trouble.add(unexpected, w.where(), "a client does not start: %v", err)
		return
	}
	w.direct = true
	excused := w.excuse()
	late := time.AfterFunc(callBound, func() { cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err == nil {
		w.run.ops.add("vanishing client: "+line[:len("holding")], 1)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(w.rng.IntN(300)) * time.Millisecond):
		}
	} else if !excused() {
		w.run.trouble.add(unexpected, w.where(), "a client ended by itself")
	}
	late.Stop()
	cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	w.run.faults.add("killed client", 1)
}
