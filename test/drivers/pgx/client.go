// What test/drivers/drivers.pl has pgx do: see there for the commands and answers.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	first  = "UPDATE t SET v = v + 1 WHERE id = 1"
	second = "UPDATE t SET v = v + 1 WHERE id = 2"
)

var (
	ctx        = context.Background()
	conn, used *pgx.Conn
	pools      = map[string]*pgxpool.Pool{}
	lines      = bufio.NewScanner(os.Stdin)
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A canceling connection has contexts that cancel what runs, and do not close it.
func connect(canceling bool) *pgx.Conn {
	config := must(pgx.ParseConfig(""))
	if canceling {
		config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
	}
	return must(pgx.ConnectConfig(ctx, config))
}

func told(err error) string {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return "00000"
	case errors.As(err, &pgErr):
		return pgErr.Code + " PgError"
	case errors.Is(err, context.DeadlineExceeded):
		return "- DeadlineExceeded"
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return "- ErrTxCommitRollback"
	}
	return fmt.Sprintf("- %v", err)
}

func sql(text string) string {
	tag, err := used.Exec(ctx, text)
	if err != nil {
		return told(err)
	}
	return fmt.Sprintf("00000 %d", tag.RowsAffected())
}

func transaction(ctx context.Context) string {
	step := "BEGIN"
	err := pgx.BeginFunc(ctx, used, func(tx pgx.Tx) error {
		step = "first statement"
		if _, err := tx.Exec(ctx, first); err != nil {
			return err
		}
		step = "second statement"
		_, err := tx.Exec(ctx, second)
		return err
	})
	if err != nil {
		return told(err) + " at " + step
	}
	return "00000"
}

func heedless() string {
	tx := must(conn.Begin(ctx))
	_, firstErr := tx.Exec(ctx, first)
	_, secondErr := tx.Exec(ctx, second)
	return told(firstErr) + ", " + told(secondErr) + ", " + told(tx.Commit(ctx))
}

func cancel() string {
	go func() {
		lines.Scan()
		must(0, conn.PgConn().CancelRequest(ctx))
	}()
	return sql(first)
}

func timeout(ofTransaction bool) string {
	limited, done := context.WithTimeout(ctx, 2*time.Second)
	defer done()
	if ofTransaction {
		return transaction(limited)
	}
	_, err := used.Exec(limited, first)
	return told(err)
}

func pipeline() string {
	batch := &pgx.Batch{}
	for _, text := range []string{first, second, first} {
		batch.Queue(text)
	}
	results := conn.SendBatch(ctx, batch)
	defer results.Close()
	var answers []string
	for range batch.Len() {
		_, err := results.Exec()
		answers = append(answers, told(err))
	}
	return strings.Join(answers, ", ")
}

func pool(check string) string {
	if pools[check] == nil {
		config := must(pgxpool.ParseConfig("pool_max_conns=1"))
		if check == "query" {
			config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				_, err := conn.Exec(ctx, "SELECT 1")
				return true, err
			}
		} else {
			config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
		}
		pools[check] = must(pgxpool.NewWithConfig(ctx, config))
	}
	pooled, err := pools[check].Acquire(ctx)
	if err == nil {
		pooled.Release()
	}
	return told(err)
}

func usable() string {
	if !used.IsClosed() && transaction(ctx) == "00000" {
		return "yes"
	}
	conn = connect(false)
	return "no"
}

func answer(command, rest string) string {
	if canceling, found := strings.CutPrefix(command, "canceling_"); found {
		command, used = canceling, connect(true)
	} else if command != "usable" {
		used = conn
	}
	switch command {
	case "sql":
		return sql(rest)
	case "transaction":
		return transaction(ctx)
	case "heedless":
		return heedless()
	case "cancel":
		return cancel()
	case "timeout", "timeout_of_transaction":
		return timeout(command != "timeout")
	case "pipeline":
		return pipeline()
	case "pool":
		return pool(rest)
	case "usable":
		return usable()
	}
	return "unknown command"
}

func main() {
	conn = connect(false)
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/jackc/pgx/v5" {
			fmt.Println(strings.TrimPrefix(module.Version, "v"))
		}
	}
	for lines.Scan() {
		command, rest, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(answer(command, rest))
	}
}
