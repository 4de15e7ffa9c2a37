# Proves what happens while CPUs are short.  Statements that are expected to take long wait
# before they start, with nothing that others need, for those that take about as long; short
# ones pass, and nobody else's decade matters; long ones never have all slots; the gate learns
# what statements use; and a place ends with its statement, or when that idles.  With a limit
# of -1, there is none while clients are patient, or while few want a CPU; one begins while
# time-outs end statements, is shown and logged, and ends when nobody needs it; and a dry run
# shows it, but nobody queues.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

GateTest::use_two_cpus();
my $gate = GateTest->new(
	'short_cpus',
	max_active_backends => 0,
	compute_query_id => 'on',
	jit => 'off',
	max_connections => 60,
	max_parallel_workers_per_gather => 0,
	min_parallel_table_scan_size => 0,
	parallel_setup_cost => 0);

$gate->value(
	'CREATE TABLE numbers AS SELECT i FROM generate_series(1, 5000) i',
	'CREATE TABLE kept (n bigint)',
	'CREATE ROLE exempt SUPERUSER LOGIN',
	'ALTER ROLE exempt SET admission_gate.long_after = -1',
	"CREATE FUNCTION works(ms int) RETURNS int LANGUAGE plpgsql AS \$\$
		DECLARE e timestamptz := clock_timestamp() + ms * interval '1 ms';
		BEGIN WHILE clock_timestamp() < e LOOP END LOOP; RETURN 0; END \$\$",
	'CREATE FUNCTION seems_long() RETURNS int LANGUAGE plpgsql COST 100000000 AS $$ BEGIN RETURN 0; END $$',
	'ANALYZE');

# By their cost: of the last decade, and of the one from 100 ms on
my $endless = 'SELECT count(*) FROM numbers a, numbers b, numbers c';
my $medium = 'SELECT count(*) FROM numbers a, numbers b WHERE b.i < 500';

sub begin { my ($sql, %param) = @_; my $session = $gate->session(%param); $session->start($sql); return $session; }

sub working
{
	my ($sql, %param) = @_;
	my $session = begin($sql, %param);
	$gate->await(sub { $gate->state($session) eq 'running' }, "at work: $sql");
	return $session;
}

sub stop
{
	my @sessions = @_;
	$_->cancel foreach grep { !$_->done } @sessions;
	foreach (@sessions) { $_->done or $_->result; $_->quit }
	return;
}

# One column of the queue of a decade, which is known by the least time, in ms
sub queue_of
{
	my ($decade, $column) = @_;
	return $gate->value("SELECT $column FROM pg_stat_admission_gate_hot_spots WHERE min_expected_time = $decade");
}

# Before the first sample

$gate->stop_gate_worker;
$gate->set_soon(max_active_backends => -1);
$gate->await("SELECT setting = '-1' FROM pg_settings WHERE name = 'admission_gate.max_active_backends'");
{
	my $one = working($endless);
	$gate->ok_comes(sub { queue_of(100_000, 'max_active, running') eq '|1' },
		'before the first sample, any number may work');
	stop($one);
}
$gate->continue_gate_worker;
$gate->set(max_active_backends => -1);
$gate->await_samples(2);

# While two are at work all the time, no decade gets more places.
my @busy = map { $gate->worker } 1 .. 2;
my $first = working($endless);

# The wait

my $second = $gate->session;
$gate->ok_queues($second, $endless, 'a long statement waits while CPUs are short');
cmp_ok($gate->state($second, 'expected_time'), '>', 100_000, 'and the view tells how long it is expected to take');
is($gate->activity($second, 'backend_xmin IS NULL AND backend_xid IS NULL'), 't', 'it holds no snapshot');
is(queue_of(100_000, 'kind, max_active, running, waiting, waiter'), 'long|1|1|1|' . $second->pid, 'the queue is shown');
is($gate->session->query('SELECT count(*) FROM kept'), '0', 'short statements pass');
is($gate->session->query($medium), 5000 * 499, 'and so does what takes less than a tenth');
stop($first);
$gate->ok_comes(sub { $gate->state($second) eq 'running' }, 'the end of one lets the next one in');
is($gate->state($second, 'expected_time IS NOT NULL'), 't', 'which is still long');

my %ways = (
	'in a block' => sub { $_[0]->query('BEGIN'); $_[0]->start($endless) },
	'in the extended protocol' => sub { $_[0]->start_extended($endless) },
	'prepared' => sub { $_[0]->prepare('p', $endless); $_[0]->start_prepared('p') },
	'a cursor' => sub { $_[0]->query('BEGIN'); $_[0]->start("DECLARE c CURSOR FOR $endless") },
	'CREATE TABLE AS' => sub { $_[0]->start("CREATE TABLE new AS $endless") },
	'COPY' => sub { $_[0]->start("COPY ($endless) TO STDOUT") },
	'INSERT' => sub { $_[0]->start("INSERT INTO kept $endless") },
	'UPDATE' => sub { $_[0]->start("UPDATE kept SET n = e.count FROM ($endless) e") },
	'DELETE' => sub { $_[0]->start("DELETE FROM kept USING ($endless) e") });

for my $way (sort keys %ways)
{
	my $session = $gate->session;
	$gate->ok_queues($session, $ways{$way}, "waits: $way");
	is($gate->activity($session, 'backend_xmin IS NULL AND backend_xid IS NULL'), 't', "$way: holds no snapshot");
	$session->cancel;
	is($session->sqlstate, '57014', "$way: can be canceled");
	$session->quit;
}

# The ends of a wait
{
	my $session = $gate->session(session => { 'admission_gate.queue_timeout' => 50 });
	my $result = $session->start($endless)->result;
	is($session->sqlstate_of($result), '53000', 'queue_timeout ends the wait');
	like(
		$result->{error}{D} // '',
		qr/^The limit of statements that take about as long is 1 at a time/,
		'and says what it waited for');
	my ($left, $terminated) = map { $gate->waiter($endless) } 1 .. 2;
	my $overdue = $gate->counter('overdue');
	$left->hang_up;
	$gate->value('SELECT pg_terminate_backend(' . $terminated->pid . ')');
	$gate->ok_comes(sub { $gate->value('SELECT sum(waiting) FROM pg_stat_admission_gate') eq '0' },
		'who hangs up or is terminated leaves the queue');
	is($gate->counter('overdue'), $overdue, 'and did not work in vain');
	$gate->ok_comes('admitted = completed + failed + running FROM pg_stat_admission_gate', 'all are counted');
}

# What does not wait

for my $case (
	[ 'the second of a transaction' => 'BEGIN // SELECT 1 // ' . $endless ],
	[ 'one with a transaction ID' => 'BEGIN // SELECT pg_current_xact_id() // ' . $endless ],
	$gate->value('SHOW server_version_num') < 170000
	? ()
	: [ 'the query of a materialized view, which exists by then' => "CREATE MATERIALIZED VIEW made AS $endless" ],
	[ 'one after LOCK' => 'BEGIN // LOCK TABLE kept // ' . $endless ],
	[ 'one in a savepoint' => 'BEGIN // SAVEPOINT s // ' . $endless ],
	[ 'one in a function' => "DO \$\$ BEGIN PERFORM * FROM ($endless) e; END \$\$" ],
	[ 'one of an exempt session' => 'SET admission_gate.long_after = -1 // ' . $endless ],
	[ 'an exempt role' => $endless, user => 'exempt' ])
{
	my ($what, $sql, %param) = @$case;
	my @sql = split m{ // }, $sql;
	my $last = pop @sql;
	my $session = $gate->session(%param);
	$session->query($_) foreach @sql;
	$session->start($last);
	$gate->ok_comes(
		sub { $gate->state($session) eq 'running' && $gate->activity($session, q{query LIKE '%numbers%'}) eq 't' },
		"does not wait: $what");
	stop($session);
}
is($gate->session->query("EXPLAIN $endless") =~ /Aggregate/, 1, 'EXPLAIN does not wait');

# A place that does nothing

stop($second);
{
	my $cursor = $gate->session;
	$cursor->query('BEGIN', 'DECLARE c CURSOR FOR SELECT a.i FROM numbers a, numbers b, numbers c', 'FETCH 1 FROM c');
	is(queue_of(100_000, 'running'), '1', 'a cursor has a place') if $gate->state($cursor, 'expected_time') ne '';
	my $next = begin($endless);
	$gate->ok_comes(sub { $gate->state($next) eq 'running' }, 'a cursor that nobody reads gives its place up');
	is($cursor->query('FETCH 1 FROM c'), '1', 'and can be read on');
	stop($next);
	$cursor->query('COMMIT');

	# The time counts anew for each statement.
	my @cursor = ('BEGIN', 'DECLARE c CURSOR FOR SELECT a.i FROM numbers a, numbers b, numbers c');
	$gate->set(idle_after => 5000);
	$cursor->query('COMMIT', @cursor);
	$gate->await_samples(5);
	$cursor->query('COMMIT');
	$gate->await(sub { $gate->activity($cursor, "state_change < now() - interval '5 s'") eq 't' }, 'its time is over');
	$cursor->query(@cursor);
	$gate->await_samples(5);
	is(queue_of(100_000, 'running'), '1', 'a cursor keeps its place for a while, like the one before');
	$gate->set(idle_after => 100);
	$cursor->query('COMMIT', 'BEGIN');

	# Nor does a parallel query that waits for a lock: only its worker shows that.
	$gate->value(
		'CREATE FUNCTION locks(int) RETURNS text LANGUAGE sql PARALLEL SAFE AS $$ SELECT pg_advisory_xact_lock_shared(1)::text $$'
	);
	$cursor->query('SELECT pg_advisory_lock(1)');
	my $stuck =
	  $gate->session(session => { max_parallel_workers_per_gather => 2, parallel_leader_participation => 'off' });
	$stuck->start('SELECT count(locks(a.i)) FROM numbers a, numbers b, numbers c');
	$gate->await(sub { $gate->state($stuck) eq 'running' }, 'the parallel query');
	$next = begin($endless);
	$gate->ok_comes(sub { $gate->state($next) eq 'running' },
		'a parallel query whose workers wait for a lock does so, too');
	stop($next, $stuck);
	$cursor->query('SELECT pg_advisory_unlock(1)');

	# A sample may take its place before there is time to look.
	$gate->await(
		sub {
			$cursor->query('COMMIT', 'BEGIN', "DECLARE c CURSOR FOR $endless");
			return $gate->state($cursor, 'expected_time') ne '';
		},
		'the cursor');
	$cursor->query('CLOSE c');
	is($gate->state($cursor, 'expected_time'), '', 'the end of a cursor ends its place');
	$cursor->query('COMMIT');
	$cursor->quit;
}

# CPUs that idle

stop(@busy);
{
	my @sessions = map { begin($endless) } 1 .. 2;
	$gate->ok_comes(sub { join(' ', map $gate->state($_), @sessions) eq 'running running' }, 'CPUs that idle are used');
	stop(@sessions);
}

# Under a limit
{
	$gate->set(max_active_backends => 3);
	my @sessions = map { begin($endless) } 1 .. 5;
	$gate->ok_comes(sub { queue_of(100_000, 'running, waiting') eq '1|4' }, 'under a limit, each decade has its part');
	is($gate->session->query('SELECT 1'), '1', 'short statements pass');
	$gate->set(max_active_backends => 2);
	my $other = $gate->session;
	$gate->ok_queues($other, "$medium AND a.i > 0", 'and together they never have all slots');
	is(queue_of(100, 'max_active, running, waiting'), '0|0|1', 'though one has no place then');
	is($gate->session->query('SELECT 1'), '1', 'so that short ones pass');
	is($gate->counter('running'), '1', 'nor more than the limit says');
	stop(@sessions, $other);
	$gate->set(max_active_backends => -1);
	$gate->ok_quiet('after long ones under a limit');
}

# What is learned
{
	my $session = $gate->session;
	my $expects = sub {
		my ($sql, $pattern) = @_;
		$session->start($sql);
		my $seen = '';
		$gate->await(sub { ($seen = $gate->state($session, 'expected_time')) =~ $pattern || $session->done }, $sql);
		$session->result;
		return $seen;
	};
	my $learns = sub { $expects->('SELECT works(500)', qr/./) };
	$gate->ok_comes($learns, 'a statement whose cost did not tell is known after it has run');
	cmp_ok($learns->(), '<', 5000, 'by what it has used');

	# A wait at the gate is no work.
	my $waits_first = 'SELECT works(1000) + 1';
	$gate->set(max_active_backends => 1);
	my $holder = $gate->worker;
	$session->start($waits_first);
	$gate->await(sub { ($gate->state($session, 'wait_time') || 0) > 4000 }, 'a long wait');
	stop($holder);
	$session->result;
	$gate->set(max_active_backends => -1);
	cmp_ok($expects->($waits_first, qr/./) || 0, '<', 4000, 'but without its wait at the gate');

	# Its cost is a hundred times too high.
	$session->query('SELECT seems_long()') foreach 1 .. 2;
	my @busy = map { $gate->worker } 1 .. 2;
	my $one = working("SELECT a.i, seems_long() FROM numbers a, numbers b, numbers c");
	$gate->ok_runs($session, 'SELECT seems_long()', 'a statement whose cost misled does not wait again');
	stop($one, @busy);

	# What its workers use counts.
	$session->query('SET max_parallel_workers_per_gather = 2', 'SET parallel_leader_participation = off');
	my $parallel = q{SELECT count(*) FROM numbers a, numbers b WHERE b.i < 3000 AND a.i + b.i > 0};
	$session->query($parallel) foreach 1 .. 2;
	cmp_ok($expects->($parallel, qr/./), '>', 100, 'what parallel workers use counts');
}

# The log
{
	my $from = -s $gate->node->logfile;
	my @busy = map { $gate->worker } 1 .. 2;
	my $one = working($endless);
	$gate->await(sub { queue_of(100_000, 'max_active') eq '1' }, 'one place');
	my $next = $gate->waiter($endless, session => { 'admission_gate.log_min_wait' => 0 });
	stop($one);
	my $line = qr/admission wait ended after [\d.]+ ms: admitted long, pool "default"/;
	$gate->ok_comes(
		sub { slurp_file($gate->node->logfile, $from) =~ $line },
		'a line of log_min_wait says that it was a long statement');
	stop($next, @busy);
}

# A limit while time-outs end statements
#
# When the gate comes on again, what was cancelled before is no evidence.
$gate->set(log_min_wait => 3_600_000, max_active_backends => $_) foreach 0, -1;
my $burn = 'DO $$ BEGIN LOOP END LOOP; END $$';
my $short = 'DO $$ BEGIN FOR i IN 1..100000 LOOP END LOOP; END $$';

# Sessions that send a statement over and over, as long as somebody looks
sub crowd
{
	my ($n, $sql, %settings) = @_;
	return map { { session => $gate->session(session => \%settings), sql => $sql } } 1 .. $n;
}

sub keep_busy
{
	for my $one (@_)
	{
		my $session = $one->{session};
		next if $one->{busy} && !$session->done;
		$session->result if $one->{busy};
		$session->start($one->{sql});
		$one->{busy} = 1;
	}
	return;
}

sub ends_crowd { $_->{session}->stop foreach @_; return; }

# The limit in both views; empty if there is none
sub limit
{
	return $gate->value(
		'SELECT CASE WHEN w.cpu_limit = g.max_active AND w.cpu_limit_since <= now() THEN w.cpu_limit::text
			WHEN w.cpu_limit IS NULL AND w.cpu_limit_since IS NULL AND g.max_active = -1 THEN \'none\'
			ELSE \'unclear\' END
		FROM pg_stat_admission_gate g, pg_stat_admission_gate_worker w');
}

# While they are busy, it comes to be so.
sub ok_comes_beside
{
	my ($condition, $what, @crowd) = @_;
	return $gate->ok_comes(sub { keep_busy(@crowd); $condition->() }, $what);
}

# For so many seconds, there is no limit.
sub ok_no_limit
{
	my ($seconds, $what, @crowd) = @_;
	my $end = time + $seconds;
	my %seen;

	while (time < $end)
	{
		keep_busy(@crowd);
		$seen{ limit() } = 1;
		usleep(10_000);
	}
	return is_deeply([ keys %seen ], ['none'], $what);
}

sub logged { return scalar(() = slurp_file($gate->node->logfile) =~ /LOG:  admission limit $_[0]/g); }

my $ends = sub { limit() eq 'none' };

# No evidence, no limit
{
	my @patient = crowd(24, $short);
	ok_no_limit(2, 'patient sessions have no limit', @patient);
	ends_crowd(@patient);
	my @few = crowd(6, $burn, statement_timeout => '50ms');
	ok_no_limit(2, 'nor do few that time-outs end', @few);
	ends_crowd(@few);
	is(logged('began'), 0, 'and the log has none');
}

# Evidence
my @impatient = crowd(24, $burn, statement_timeout => '100ms');
ok_comes_beside(sub { limit() =~ /^\d+$/ },
	'while time-outs end statements and CPUs are short, there is a limit', @impatient);
ok_comes_beside(sub { limit() eq '2' }, 'it falls to the number of CPUs', @impatient);
ok_comes_beside(sub { $gate->value('SELECT waiting > 0 FROM pg_stat_admission_gate') eq 't' },
	'the others queue', @impatient);
{
	my $refused = $gate->session(session => { 'admission_gate.queue_timeout' => '1ms' });
	my $error;
	ok_comes_beside(sub { $error = $refused->start('SELECT 1')->result->{error} },
		'queue_timeout ends a wait for it', @impatient);
	is( $error->{H},
		'Try again later, or increase admission_gate.queue_timeout.',
		'without a hint to increase what nobody has set');
}
# At most eight for each CPU
ok(logged('began: (\d|1[0-6]) backends at work'), 'the log says that it began');
is(logged('ended'), 0, 'and not that it ended');
ends_crowd(@impatient);
$gate->ok_comes($ends, 'it ends when nobody needs it');
is(logged('ended after'), logged('began'), 'as the log says');

# Few are late, but many more nearly are; then the gate is off for a moment.
my $nearly = q{DO $$ BEGIN WHILE clock_timestamp() < statement_timestamp() + '5.8 s' LOOP END LOOP; END $$};
my @late = (crowd(20, $nearly, statement_timeout => '6s'), crowd(3, $burn, statement_timeout => '600ms'));
my @other = crowd(4, 'SELECT 1');
ok_comes_beside(sub { limit() =~ /^\d+$/ }, 'it comes again: nearly late is evidence, too', @late, @other);
ends_crowd(@late, @other);
my $began = logged('began');
$gate->set(max_active_backends => $_) foreach 0, -1;
ok_no_limit(1, 'after the gate was off, there is none');
is(logged('began'), $began, 'nor was there one without new evidence');

# A number that the administrator sets
ok_comes_beside(sub { limit() =~ /^\d+$/ }, 'it comes once more', @impatient);
$gate->set(max_active_backends => 20);
is($gate->value('SELECT cpu_limit FROM pg_stat_admission_gate_worker'), '', 'a number that is set replaces it');
ends_crowd(@impatient);

# A dry run
$gate->set(max_active_backends => -1, mode => 'observe');
my $queued = $gate->counter('queued');
my $would_queue = $gate->counter('would_queue');
ok_comes_beside(sub { limit() =~ /^\d+$/ && $gate->counter('would_queue') > $would_queue },
	'a dry run shows a limit, and counts who would have queued', @impatient);
{
	my $end = time + 1;
	while (time < $end) { keep_busy(@impatient); usleep(10_000) }
}
is($gate->counter('queued'), $queued, 'nobody queues');
# As it began, unless these sessions get too little of the CPUs.
like(limit(), qr/^\d+$/, 'and the limit stays');
ends_crowd(@impatient);
$gate->ok_comes($ends, 'it ends there, too');
$gate->finish;
