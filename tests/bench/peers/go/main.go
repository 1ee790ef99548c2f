// Locks over Redis in Go, measured by `make bench ARGS=peers`. The protocol is in tests/bench/peers/README.md.
package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const lease = 10 * time.Second

// One contender's handle of a lock.
type handle interface {
	acquire(ctx context.Context) error
	release(ctx context.Context) error
}

type peer struct {
	name    string
	version string
	note    string
	open    func() handle
}

func main() {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		fmt.Fprintln(os.Stderr, "usage: driver redis://HOST:PORT...\nDrives Go's locks for `make bench ARGS=peers`: commands on stdin, replies on stdout.")
		os.Exit(2)
	}
	var clients []*redis.Client
	for _, url := range os.Args[1:] {
		options, err := redis.ParseURL(url)
		check(err)
		clients = append(clients, redis.NewClient(options))
	}
	ctx := context.Background()
	peers := peersOf(ctx, clients)
	for _, peer := range peers {
		fmt.Printf("peer %s %s %s\n", peer.name, peer.version, peer.note)
	}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		fmt.Println(execute(ctx, peers, strings.Fields(input.Text())))
	}
}

func execute(ctx context.Context, peers []peer, words []string) string {
	for _, peer := range peers {
		switch {
		case len(words) == 3 && words[0] == "cycles" && words[1] == peer.name:
			return strconv.FormatInt(cycles(ctx, peer.open(), number(words[2])).Nanoseconds(), 10)
		case len(words) == 5 && words[0] == "contend" && words[1] == peer.name:
			length, hold := time.Duration(number(words[3]))*time.Millisecond, time.Duration(number(words[4]))*time.Microsecond
			return contend(ctx, peer, number(words[2]), length, hold)
		}
	}
	panic(fmt.Sprintf("no such command: %q", words))
}

func cycles(ctx context.Context, lock handle, n int) time.Duration {
	begun := time.Now()
	for range n {
		check(lock.acquire(ctx))
		check(lock.release(ctx))
	}
	return time.Since(begun)
}

// The reply: grants within the time, all grants, those that went to another contender than the grant before, the longest wait,
// the sum of all waits and the sum of all holds in nanoseconds.
func contend(ctx context.Context, peer peer, contenders int, length, hold time.Duration) string {
	var ready, done sync.WaitGroup
	begin := make(chan time.Time)
	within := make([]int, contenders)
	all, changed, last := 0, 0, -1
	var longest, waits, holds time.Duration
	ready.Add(contenders)
	for me := range contenders {
		lock := peer.open()
		done.Go(func() {
			ready.Done()
			until := (<-begin).Add(length)
			for {
				asked := time.Now()
				check(lock.acquire(ctx))
				now := time.Now()
				// Only the holder writes these.
				all++
				waits += now.Sub(asked)
				longest = max(longest, now.Sub(asked))
				if last != me {
					changed++
				}
				last = me
				if hold > 0 {
					time.Sleep(hold)
				}
				holds += time.Since(now)
				check(lock.release(ctx))
				if !now.Before(until) {
					return
				}
				within[me]++
			}
		})
	}
	ready.Wait()
	now := time.Now()
	for range contenders {
		begin <- now
	}
	done.Wait()
	sum := 0
	for _, grants := range within {
		sum += grants
	}
	return fmt.Sprintf("%d %d %d %d %d %d", sum, all, changed, longest.Nanoseconds(), waits.Nanoseconds(), holds.Nanoseconds())
}

// Of several servers redsync wants a majority, and the floor knows the first.
func peersOf(ctx context.Context, clients []*redis.Client) []peer {
	var pools []redsyncredis.Pool
	for _, client := range clients {
		pools = append(pools, goredis.NewPool(client))
	}
	locks := redsync.New(pools...)
	redsyncVersion, clientVersion := version("github.com/go-redsync/redsync/v4"), version("github.com/redis/go-redis/v9")
	often := redsync.WithRetryDelay(time.Millisecond)
	return []peer{
		{"floor", clientVersion, "go-redis: SET NX PX and EVALSHA on one connection", func() handle {
			return newFloor(ctx, clients[0])
		}},
		{"redsync", redsyncVersion, "polls every 50 to 250 ms, its default", func() handle {
			return mutexOf(locks, "peers-redsync")
		}},
		{"redsync-1ms", redsyncVersion, "polls every 1 ms", func() handle {
			return mutexOf(locks, "peers-redsync-1ms", often)
		}},
	}
}

// The least that a lock with a lease needs.
type floor struct {
	connection *redis.Conn
	delete     string
	n          int
}

const deleteScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`

var floorOnce = sync.OnceValue(func() *floor { return &floor{} })

func newFloor(ctx context.Context, client *redis.Client) handle {
	floor := floorOnce()
	if floor.connection == nil {
		floor.connection = client.Conn()
		floor.delete = floor.connection.ScriptLoad(ctx, deleteScript).Val()
	}
	return floor
}

func (f *floor) token() string { return fmt.Sprintf("%032x", f.n) }

func (f *floor) acquire(ctx context.Context) error {
	f.n++
	return f.connection.SetArgs(ctx, "peers-go-floor", f.token(), redis.SetArgs{Mode: "NX", TTL: lease}).Err()
}

func (f *floor) release(ctx context.Context) error {
	deleted, err := f.connection.EvalSha(ctx, f.delete, []string{"peers-go-floor"}, f.token()).Int()
	if err == nil && deleted != 1 {
		err = fmt.Errorf("the key was not ours")
	}
	return err
}

type redsyncMutex struct{ *redsync.Mutex }

// No end of tries: a contender waits until it has the lock.
func mutexOf(locks *redsync.Redsync, name string, options ...redsync.Option) handle {
	options = append(options, redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt))
	return redsyncMutex{locks.NewMutex(name, options...)}
}

func (m redsyncMutex) acquire(ctx context.Context) error { return m.LockContext(ctx) }

func (m redsyncMutex) release(ctx context.Context) error {
	_, err := m.UnlockContext(ctx)
	return err
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "unknown"
}

func number(text string) int {
	number, err := strconv.Atoi(text)
	check(err)
	return number
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
