# Soak: everything that can go wrong at once on one server, for as long as one likes.
# A crowd of sessions does mixed work while pgbench sends statement after statement, every
# setting of the extension changes by reload, sessions are cancelled, terminated, hung up,
# stopped for seconds, and the views are read all the time.
#
# Proves after each minute that the gauges of the pools are those of the backends, the totals
# add up, nobody has waited or gone without an answer for longer than may be; and at the end
# that every session has been answered, nothing is left behind, not one slot more nor less,
# and no process has crashed.
#
# SOAK sets for how many minutes, GATE_SEED repeats the random numbers.

use strict;
use warnings;
use lib 'test/perl';
use GateCrowd;
use GateTest;
use List::Util  qw(max min shuffle sum0);
use Time::HiRes qw(alarm time usleep);

my $minutes = $ENV{SOAK} || 10;

# For how many seconds a backend may wait, and a session be without an answer.  Where all
# holders wait for somebody in the queue, one more is let in after 1, 2, 4 ... 60 s, also in
# that of a hot spot; in a full pool every 60 s: four times that, and then what the statement
# itself waits for.
my $longest_wait = 300;

# Waits longer than this are to be explained by what is noted of them, s.
my $short_wait = 5;

# For how many seconds a process may be stopped
my $longest_stop = 8;

my $gate = GateTest->new(
	'soak', %GateCrowd::settings,
	max_active_backends => 2,
	max_connections => 130);
my $node = $gate->node;
my ($host, $port) = ($node->host, $node->port);
my $directory = PostgreSQL::Test::Utils::tempdir();
my $crowd = GateCrowd->new($gate, 60);

sub one_of { return $_[ rand @_ ]; }
sub lines  { return split /\n/, $gate->value($_[0]); }

# Those that there are, as the server tells them
my %setting;
foreach (
	lines(
		q{SELECT substr(name, length('admission_gate.') + 1), context, vartype, unit, min_val, max_val,
			array_to_string(enumvals, ',')
		FROM pg_settings WHERE name LIKE 'admission_gate.%' AND context IN ('sighup', 'superuser', 'user')}))
{
	my ($name, @its) = split /\|/, $_, -1;
	@{ $setting{$name} }{qw(context vartype unit min max enumvals)} = @its;
}
cmp_ok(scalar keys %setting, '>', 5, 'the server tells which settings there are');

# Those that a session can set for itself
my @of_session = grep { $setting{$_}{context} ne 'sighup' } sort keys %setting;

# What a text or a flag can be, and what is more likely.  Whatever is not here, is chosen by
# its type; a name that no setting has does no harm.
my %likely = (
	max_active_backends => [ 0, (-1) x 3, (1) x 4, (2) x 4, 3, 3, 4, 4, 5, 8 ],
	mode => [ ('enforce') x 5, 'observe' ],
	bypass => [ ('off') x 9, 'on' ],
	pool => [ ('default') x 4, 'a', 'b', 'missing' ],
	pools => [ ('') x 2, (\&some_pools) x 8, \&many_pools ],
	bypass_application_names => [ ('') x 4, 'psql, pgbench*', 'postgres_fdw' ],
	queue_timeout => [ (0) x 6, 50, 500, 3000 ],
	max_queue_length => [ (-1) x 8, 0, 3, 20, 100 ],
	log_min_wait => [ (-1) x 3, 0, 100 ]);

# A value for that setting, undef if none is known
sub some_value
{
	my ($name) = @_;
	my $its = $setting{$name};

	if ($likely{$name})
	{
		my $value = one_of(@{ $likely{$name} });
		return ref $value ? $value->() : $value;
	}
	return one_of('on', 'off') if $its->{vartype} eq 'bool';
	return one_of(split /,/, $its->{enumvals}) if $its->{vartype} eq 'enum';
	return if $its->{vartype} eq 'string';
	return one_of($its->{min}, grep { $_ >= $its->{min} && $_ <= $its->{max} } 0, 1, 5, 20, 100, 500, 2000, 5000);
}

sub pool_text
{
	my ($name) = @_;
	my @its;

	push @its, 'max_active = ' . one_of(1, 1, 2, 4) if rand() < 0.6;
	push @its, 'priority = ' . one_of(-10, -1, 1, 10) if rand() < 0.5;
	push @its, 'max_queue_length = ' . one_of(-1, 0, 2, 20) if rand() < 0.2;
	push @its, 'queue_timeout = ' . one_of(20, 300, 3000) if rand() < 0.2;
	return $name . (@its ? ': ' . join ', ', @its : '');
}

sub some_pools
{
	return join '; ', map { pool_text($_) } grep { rand() < 0.6 } 'a' .. 'f', 'default';
}

# As many as there can be beside the default one, of twice as many names
sub many_pools
{
	return join '; ', map { pool_text("p$_") } (shuffle 1 .. 62)[ 0 .. 30 ];
}

# Some settings change, at once or in a row of reloads.
sub change_settings
{
	foreach (1 .. one_of(1, 1, 1, 1, 5))
	{
		my @names = grep { rand() < 0.3 } sort keys %setting;
		push @names, 'max_active_backends' if rand() < 0.5;
		my %values = map { $_ => some_value($_) } @names;
		$gate->set_soon(map { ("admission_gate.$_" => $values{$_}) } grep { defined $values{$_} } keys %values);
	}
	return;
}

sub set_something
{
	my ($session) = @_;
	my $name = one_of(@of_session);
	my $value = some_value($name) // $setting{$name}{min};
	return $session->start("SET admission_gate.$name = '$value'");
}

$gate->value(
	'CREATE ROLE web LOGIN',
	'CREATE ROLE monitor LOGIN IN ROLE pg_monitor',
	'ALTER ROLE monitor SET admission_gate.bypass = on',
	'CREATE TABLE hot AS SELECT id, 0 AS v FROM generate_series(1, 100) id',
	'GRANT ALL ON hot TO web');
$crowd->connect_to_itself;
$crowd->expect(
	'08000', '08003', '08006', '08P01',    # connections of sessions to the server
	'26000',                               # not prepared, as that was refused
	'25P03',                               # idle for too long in a transaction
	'38000',                               # a program has failed
	'42501',                               # not the owner: user web
	'57P05',                               # idle for too long
);

# psql waits at the gate for one that waits for psql; and it writes to no table but that of
# the other connections to the same server: nobody finds a deadlock.
my $psql = $node->config_data('--bindir') . "/psql -XAtq -h $host -p $port -U " . getpwuid($<) . ' postgres';
my $update = 'UPDATE t SET v = v + 1 WHERE id = :few';
my $parallel = 'SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0';

# Steps of a script are separated by " | ".  In statement scope, no cursor is open into
# another statement that waits for a lock: it pins a page, and nobody finds a deadlock with
# VACUUM, which waits for that.
my @scripts = split /\n/, <<"END";
COPY log FROM PROGRAM '$psql -c "SELECT count(*) FROM near"'
COPY log FROM PROGRAM '$psql -c "UPDATE near SET v = v + 1 WHERE id = :few RETURNING v"'
COPY (SELECT 'SELECT count(*) FROM near;') TO PROGRAM '$psql -o /dev/null'
BEGIN | COPY log FROM PROGRAM '$psql -c "SELECT 1 FROM pg_sleep(0.1)"' | 500 | COMMIT
BEGIN | $update | 3000 | COMMIT
BEGIN | SELECT count(*) FROM t | 5000 | SELECT 1 | COMMIT
BEGIN | LOCK u | 2000 | COMMIT
BEGIN | LOCK u NOWAIT | UPDATE u SET v = v + 1 WHERE id = :few | 500 | ROLLBACK
BEGIN | SELECT pg_advisory_xact_lock(:few) | 2000 | SELECT 1 | COMMIT
SET idle_in_transaction_session_timeout = 500 | BEGIN | $update | 1500 | COMMIT | RESET ALL
SET client_connection_check_interval = 50 | SELECT pg_sleep(1) | RESET ALL
SET lock_timeout = 30 | LOCK u | UPDATE t SET v = v + 1 WHERE id = 1 | RESET ALL
SET statement_timeout = 300 | SELECT count(*) FROM t | UPDATE t SET v = v + 1 WHERE id = 1 | SELECT pg_sleep(0.2) | RESET ALL
BEGIN; $update; PREPARE TRANSACTION 'f:pid'
SET admission_gate.scope = statement | CALL commits() | BEGIN | DECLARE c CURSOR FOR SELECT * FROM t | FETCH 10 FROM c | 300 | FETCH 10 FROM c | CLOSE c | SAVEPOINT a | SELECT 1/0 | ROLLBACK TO a | $update | 1000 | COMMIT | RESET ALL
SET admission_gate.scope = statement; $parallel | BEGIN | SELECT sum(v) FROM t | SELECT sum(v) FROM t | COMMIT | RESET ALL
@{[ 'BEGIN; SELECT count(*) FROM t; COMMIT; ' x 20 ]}
@{[ join ' | ', ($update) x 10 ]}
SET SESSION AUTHORIZATION web | SELECT 1 | SELECT count(*) FROM t | RESET SESSION AUTHORIZATION
SELECT pg_stat_admission_gate_reset()
END
push @scripts, 'BEGIN | UPDATE far SET v = v + 1 WHERE id = :few | 1000 | COMMIT' if $gate->has_contrib('postgres_fdw');
push @scripts, <<"END" =~ s/\n/ /gr if $gate->has_contrib('dblink');
SELECT dblink_connect('c', 'host=$host port=$port dbname=postgres') |
SELECT dblink_send_query('c', 'SELECT pg_sleep(0.1)') | 300 |
SELECT * FROM dblink_get_result('c') AS (x text) | SELECT dblink_disconnect('c')
END
$crowd->add_scripts(
	(map { [ split / \| / ] } @scripts),
	[ sub { $_[0]->start("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 3000)) TO STDOUT") }, 3000 ],
	[
		\sub { $_[0]->start('COPY log FROM STDIN')->copy_data("1\n") }, 3000, sub { $_[0]->copy_data("2\n")->copy_done }
	],
	[
		'BEGIN', sub { $_[0]->parse('', 'SELECT id FROM t')->bind('p', '')->execute('p', 3)->sync },
		3000, sub { $_[0]->execute('p', 3)->sync }, 'COMMIT'
	],
	[
		sub { $_[0]->start('SET admission_gate.pool = p' . int(1 + rand 62)) },
		'SELECT pg_sleep(0.01)',
		$update, 'RESET ALL'
	],
	[ (\&set_something) x 2, 'SELECT count(*) FROM t', 'BEGIN', $update, 200, 'COMMIT', 'RESET ALL' ],
	[ 'BEGIN', 'SELECT 1', \&set_something, 'SELECT 1', 'COMMIT', 'RESET ALL' ]);

# Starts pgbench as that role, with that output.
sub start_pgbench
{
	my ($role, @options) = @_;
	return IPC::Run::start($gate->pgbench('-U', $role, @options), '<', \undef, '>&', "$directory/$role.out");
}

# "look" is for a role that passes the gate: nobody disturbs it.  The others send one
# statement after the other, faster than the crowd, as a user that may be refused and
# disturbed; then pgbench is started again.
my %pgbench_scripts = (
	look => join('', map { "SELECT * FROM pg_stat_admission_gate$_;\n" } '', '_backends', '_histogram', '_hot_spots'),
	hot => "\\set id random(1, 20)\nUPDATE hot SET v = v + 1 WHERE id = :id;\n",
	read => "\\set id random(1, 20)\nSELECT v FROM hot WHERE id = :id;\n",
	block => "BEGIN;\nSELECT count(*) FROM hot;\nUPDATE hot SET v = v + 1 WHERE id = 1;\nEND;\n");
append_to_file("$directory/$_", $pgbench_scripts{$_}) foreach keys %pgbench_scripts;

my ($pgbench, $pgbench_due) = (undef, 0);

sub keep_pgbench_going
{
	if ($pgbench)
	{
		# Sometimes its clients vanish all at once.
		$pgbench->signal('KILL') if rand() < 0.0005;
		return if $pgbench->pumpable;
		$pgbench->finish;
		$pgbench = undef;
		$pgbench_due = time + 10 * rand() * rand() * rand();
	}
	return if time < $pgbench_due;
	my @files = map { ('-f', "$directory/$_\@" . one_of(1, 10)) } qw(hot read block);
	my $protocol = one_of(qw(simple extended prepared));
	$pgbench =
	  start_pgbench('web', '-c', one_of(1, 4, 12), '-T', one_of(1, 5, 20), '-M', $protocol, '--max-tries=0', @files);
	return;
}

# Backends of clients, those of connections from the server to itself among them
my $others =
  q{backend_type IN ('client backend', 'parallel worker') AND usename <> 'monitor' AND pid <> pg_backend_pid()};
my $at_gate = 'pid IN (SELECT pid FROM pg_stat_admission_gate_backends';

# Asleep: these hold no spinlock, nor a lock that others could not go on without.
my $asleep = q{wait_event_type IN ('Activity', 'Client', 'Extension', 'IPC', 'Lock', 'Timeout')
	AND wait_event <> 'SpinDelay'};

# Stopped processes, and until when.  They go on when it is time, even if the test is stuck
# then.
my %stopped;
local $SIG{ALRM} = sub { continue_due(time) };
alarm 1, 1;
END { kill CONT => keys %stopped; }

sub continue_due
{
	my ($when) = @_;

	my @due = grep { $stopped{$_} < $when } keys %stopped;
	kill CONT => @due;
	delete @stopped{@due};
	return;
}

# Stops processes that sleep, for some time, mostly a short one: any, those at the gate, all
# that wait, or the processes that tell the others of new settings.
my @some = (
	[ $others, 3 ],
	[ "$others AND $at_gate)", 3 ],
	[ "$others AND $at_gate WHERE gate_state = 'waiting')", 1000 ],
	[ "$others AND $at_gate WHERE gate_state <> 'waiting')", 1000 ],
	[ "backend_type IN ('checkpointer', 'background writer', 'walwriter')", 1 ]);

sub stop_some
{
	my ($which, $most) = @{ one_of(@some) };
	my @pids = lines("SELECT pid FROM pg_stat_activity WHERE $which AND $asleep ORDER BY random() LIMIT $most");
	return if !@pids;

	kill STOP => @pids;
	@stopped{@pids} = (time + $longest_stop * rand() * rand() * rand()) x @pids;

	# Whoever has woken up meanwhile goes on.
	my %sleeps =
	  map { $_ => 1 } lines('SELECT pid FROM pg_stat_activity WHERE pid IN (' . join(',', @pids) . ") AND $asleep");
	my @awake = grep { !$sleeps{$_} } @pids;
	kill CONT => @awake;
	delete @stopped{@awake};
	return;
}

my $any = "FROM (SELECT pid FROM pg_stat_activity WHERE $others ORDER BY random() LIMIT 1) s";

# What there is, how often a second at an unrest of 1, and when unrest and settings change
my %disturbances = (
	crowd => [ 3, sub { $crowd->disturb } ],
	stop => [ 0.3, \&stop_some ],
	# By the functions of SQL, which signal programs that the backend has started, too
	cancel => [ 0.5, sub { $gate->value("SELECT pg_cancel_backend(pid) $any") } ],
	terminate => [ 0.3, sub { $gate->value("SELECT pg_terminate_backend(pid) $any") } ]);
my ($unrest, $unrest_due, $reload_due, $look_due, $last_disturbed) = (0, 0, 0, 0, time);

sub disturb
{
	my $passed = min(time - $last_disturbed, 1);
	$last_disturbed = time;

	if (time > $unrest_due)
	{
		$unrest = one_of(0, 0.2, 1, 1, 4);
		$unrest_due = time + 1 + rand 15;
	}
	if (time > $reload_due)
	{
		change_settings();
		$reload_due = time + one_of(0.1, 0.5, 1, 2, 5, 5, 20);
	}
	foreach my $disturbance (values %disturbances)
	{
		my ($rate, $code) = @$disturbance;
		$code->() if rand() < $rate * $unrest * $passed;
	}
	continue_due(time);
	keep_pgbench_going();
	look() if time > $look_due;
	return;
}

# The longest that anybody has been seen to wait that was not stopped, and the longest
# without an answer, s; and the answers at the last look
my ($waited, $unanswered, $answered) = (0, 0, 0);
my $explain_due = 0;

sub look
{
	$look_due = time + 0.5;
	my $but = join ',', 0, keys %stopped;
	my $longest = $gate->value(
		"SELECT coalesce(max(wait_time), 0) / 1000 FROM pg_stat_admission_gate_backends
		WHERE gate_state = 'waiting' AND pid NOT IN ($but)");
	$waited = max($waited, $longest);
	explain($longest) if $longest > $short_wait && time > $explain_due;
	$unanswered = max($unanswered, $crowd->longest_unanswered);
	return;
}

# Notes why somebody waits for long, as far as can be seen: in one line what the others at
# the gate do; then the settings, the queues, and each backend, but few of those that wait.
sub explain
{
	my ($longest) = @_;
	my $stopped = join ',', -1, keys %stopped;
	my $does = "CASE WHEN s.pid IN ($stopped) THEN 'stopped' WHEN s.state <> 'active' THEN s.state
		WHEN wait_event_type = 'Lock' THEN 'waits for lock of ' || coalesce((SELECT string_agg(DISTINCT
			CASE WHEN pid IN ($stopped) THEN 'stopped' ELSE coalesce(gate_state, state, 'prepared') END, ', ')
			FROM unnest(pg_blocking_pids(s.pid)) AS p (pid) LEFT JOIN pg_stat_activity USING (pid)
			LEFT JOIN pg_stat_admission_gate_backends USING (pid)), 'nobody')
		ELSE coalesce(wait_event, 'at work') END";

	$explain_due = time + 10;
	note sprintf "wait of %.1f s: %s", $longest, join "\n  ",
	  map { lines($_) }
	  "SELECT string_agg(concat_ws(' ', n, gate_state, what), '; ' ORDER BY n DESC)
		FROM (SELECT count(*) AS n, gate_state, $does AS what
			FROM pg_stat_admission_gate_backends JOIN pg_stat_activity s USING (pid)
			WHERE gate_state <> 'waiting' GROUP BY 2, 3) h",
	  q{SELECT string_agg(substr(name, 16) || ' = ' || setting, ', ') FROM pg_settings
		WHERE name LIKE 'admission_gate.%' AND context = 'sighup'},
	  q{SELECT format('pool %s: limit %s, running %s, lent %s, waiting %s, admitted %s, lends %s, stalls %s', pool,
			max_active, running, lent, waiting, admitted, lends, stalls)
		FROM pg_stat_admission_gate WHERE waiting > 0},
	  q{SELECT format('hot spot %s %s: limit %s, running %s, blocked %s, waiting %s, admitted %s', kind,
			coalesce(relation, lwlock), max_active, running, blocked, waiting, admitted)
		FROM pg_stat_admission_gate_hot_spots WHERE waiting > 0},
	  "SELECT concat_ws(' ', pid, pool, gate_state, round(age, 1) || ' s,', what, nullif(by, '{}'), '-', q)
		FROM (SELECT pid, pool, gate_state, extract(epoch FROM now() - b.state_change) AS age, $does AS what,
				(pg_blocking_pids(pid))[:3] AS by, left(regexp_replace(query, '\\s+', ' ', 'g'), 80) AS q,
				rank() OVER (PARTITION BY gate_state ORDER BY b.state_change)
			FROM pg_stat_activity s LEFT JOIN pg_stat_admission_gate_backends b USING (pid)
			WHERE $others AND (gate_state IS NOT NULL OR state <> 'idle')) s
		WHERE CASE gate_state WHEN 'waiting' THEN rank < 6 ELSE gate_state IS NOT NULL OR by = '{}' END ORDER BY gate_state, age DESC";
	return;
}

my %has_to_be_true = (
	'the gauges of the pools are those of the backends' => q{SELECT count(*) = 0
		FROM (SELECT pool, running, lent, waiting FROM pg_stat_admission_gate) g
		FULL JOIN (SELECT pool,
			count(*) FILTER (WHERE gate_state = 'running') AS running,
			count(*) FILTER (WHERE gate_state = 'lent') AS lent,
			count(*) FILTER (WHERE gate_state = 'waiting') AS waiting
			FROM pg_stat_admission_gate_backends GROUP BY pool) b USING (pool)
		WHERE (coalesce(g.running, 0), coalesce(g.lent, 0), coalesce(g.waiting, 0))
			IS DISTINCT FROM (coalesce(b.running, 0), coalesce(b.lent, 0), coalesce(b.waiting, 0))},
	'the totals add up' =>
	  'SELECT bool_and(admitted = completed + failed + running + lent + paused) FROM pg_stat_admission_gate');

# Lets the crowd go on until the query returns true at some moment.  Nobody may be stopped
# halfway meanwhile.
sub is_true_at_times
{
	my ($sql) = @_;

	continue_due('inf');
	my $deadline = time + 60;
	while (time < $deadline)
	{
		return 1 if $gate->value($sql) eq 't';
		$crowd->step;
		usleep(5_000);
	}
	return 0;
}

sub ok_minute
{
	my ($minute) = @_;

	look();
	my @wrong = map { "not true: $_" } grep { !is_true_at_times($has_to_be_true{$_}) } sort keys %has_to_be_true;
	push @wrong, "a backend waited for $waited s" if $waited > $longest_wait;
	push @wrong, "a session was without an answer for $unanswered s" if $unanswered > $longest_wait;
	is(join('; ', @wrong), '', "minute $minute: gauges and totals add up, and nobody waits without end")
	  or diag $gate->report, "\n", everybody();

	my $ends = sum0(values %{ $crowd->ends });
	note sprintf 'minute %d: statements %d, longest wait %.1f s, longest without an answer %.1f s',
	  $minute, $ends - $answered, $waited, $unanswered;
	($waited, $unanswered, $answered) = (0, 0, $ends);
	return;
}

# What each session does, and which it waits for
sub everybody
{
	return $gate->value(
		'SELECT pid, pg_blocking_pids(pid), state, wait_event_type, wait_event, now() - state_change, query
		FROM pg_stat_activity WHERE pid <> pg_backend_pid() ORDER BY state_change');
}

my $viewer = start_pgbench('monitor', '-c', 2, '-R', 40, '-T', int($minutes * 60), '-f', "$directory/look");

foreach my $minute (1 .. $minutes)
{
	$crowd->work(60, \&disturb);
	ok_minute($minute);
}

alarm 0;
continue_due('inf');
ok($viewer->finish, 'who looked at the views all the time was not disturbed')
  or diag slurp_file("$directory/monitor.out");
$pgbench->kill_kill if $pgbench;
$gate->value('ALTER SYSTEM RESET ALL');
$gate->set(max_active_backends => 2, mode => 'enforce', pools => '');
$crowd->ok_finishes;
$gate->ok_comes("count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'", 'and is gone')
  or diag everybody();
$gate->end_prepared_transactions;
note $gate->report;
$gate->ok_quiet('after the soak');
$gate->ok_one_slot;
$node->stop;
$crowd->ok_log;
is( join("\n",
		grep { /\(PID \d+\) was terminated by|reinitializing|TRAP:|PANIC:/ } split /\n/,
		slurp_file($node->logfile)),
	'',
	'no process has crashed');

done_testing();
