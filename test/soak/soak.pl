# Soak: everything that can go wrong at once on one server, for as long as one likes.
#
# A crowd of sessions does mixed work, over connections to the same server and
# programs, too, while pgbench sends statement after statement.  Meanwhile, every
# setting of the extension changes by reload, the limit to none and back, the mode,
# the pools; sessions are cancelled, terminated, hung up, stopped for seconds; and
# the views are read all the time.
#
# After each minute: the gauges of the pools are those of the backends, the totals
# add up, nobody has waited or gone without an answer for longer than may be.  At
# the end: every session has been answered, nothing is left behind, not one slot
# more nor less, and no process has crashed.
#
# SOAK sets for how many minutes, GATE_SEED repeats the random numbers.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateCrowd;
use GateTest;
use List::Util qw(max min shuffle sum0);
use PostgreSQL::Test::Utils;
use POSIX qw(WNOHANG);
use Test::More;
use Time::HiRes qw(time usleep);

my $minutes = $ENV{SOAK} || 10;

# For how many seconds a backend may wait, and a session be without an answer.  Where
# all holders wait for somebody in the queue, one more is let in after 1, 2, 4 ... 60 s,
# in a full pool every 60 s: four times that, and then what the statement itself waits for.
my $longest_wait = 300;

# For how many seconds a process may be stopped
my $longest_stop = 8;

# ----------------------------------------------------------------
# Stopped processes
# ----------------------------------------------------------------

# The test has them go on when it is time.  Should it be stuck then, or dead, a process
# of its own does: the keeper, which begins before there are connections that it would
# keep open.
my ($keeper, $to_keeper) = start_keeper();
my %stopped;    # until when, by process id

sub start_keeper
{
	pipe my $from_test, my $to_test or die "could not make a pipe: $!";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		close $to_test;
		$SIG{$_} = 'IGNORE' foreach ('INT', 'TERM', 'HUP');
		keep($from_test);
		POSIX::_exit(0);
	}
	close $from_test;
	return ($pid, $to_test);
}

# Reads lines of a process and for how many ms it is going to be stopped.  If the test
# is gone, all go on.
sub keep
{
	my ($from_test) = @_;
	my (%due, $select, $lines);

	vec($select, fileno $from_test, 1) = 1;
	$lines = '';
	while (1)
	{
		if (select my $readable = $select, undef, undef, 0.05)
		{
			sysread $from_test, $lines, 4096, length $lines or last;
			$due{$1} = time + $2 / 1000 + 1 while $lines =~ s/^(\d+) (\d+)\n//;
		}
		my @late = grep { $due{$_} < time } keys %due;
		kill CONT => @late;
		delete @due{@late};
	}
	kill CONT => keys %due;
	return;
}

END
{
	kill CONT => keys %stopped;
}

my $gate = GateTest->new(
	'soak',
	max_active_backends => 2,
	max_connections => 130,
	superuser_reserved_connections => 0,
	max_prepared_transactions => 60,
	max_parallel_workers_per_gather => 2,
	shared_buffers => '64MB',
	max_wal_size => '1GB',
	autovacuum => 'on',
	autovacuum_naptime => 1,
	deadlock_timeout => '100ms',
	log_statement => 'none',
	log_line_prefix => '%m [%p] %b %e ');
my $node = $gate->node;
my ($host, $port) = ($node->host, $node->port);
my $user = getpwuid($<);
my $bindir = $node->config_data('--bindir');
my $directory = PostgreSQL::Test::Utils::tempdir();

my $crowd = GateCrowd->new($gate, 60);

sub one_of { return $_[ rand @_ ]; }

# Mostly a short time, seldom a long one: seconds
sub some_time { my ($longest) = @_; return $longest * rand() * rand() * rand(); }

# ----------------------------------------------------------------
# Settings
# ----------------------------------------------------------------

# Those that there are, as the server tells them
my %setting = map { my ($name, @its) = split /\|/, $_, -1; $name => { %{ described(@its) } } }
  split /\n/, $gate->value(
	q{SELECT substr(name, length('admission_gate.') + 1), context, vartype, unit,
		min_val, max_val, array_to_string(enumvals, ',')
	FROM pg_settings WHERE name LIKE 'admission_gate.%' AND context IN ('sighup', 'superuser', 'user')
	ORDER BY name});
cmp_ok(scalar keys %setting, '>', 5, 'the server tells which settings there are');

# Those that a session can set for itself
my @of_session = grep { $setting{$_}{context} ne 'sighup' } sort keys %setting;

# What a text or a flag can be, and what is more likely.  Whatever is not here, is
# chosen by its type; a name that no setting has does no harm.
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

sub described
{
	my ($context, $vartype, $unit, $min, $max, $enumvals) = @_;
	return {
		context => $context,
		vartype => $vartype,
		unit => $unit,
		min => $min,
		max => $max,
		enumvals => [ split /,/, $enumvals ]
	};
}

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
	return one_of(@{ $its->{enumvals} }) if $its->{vartype} eq 'enum';
	return if $its->{vartype} eq 'string';

	my @values =
		$its->{unit} eq 'ms'      ? (0, 1, 5, 20, 100, 500, 2000, 5000)
	  : $its->{vartype} eq 'real' ? (0, 0.1, 0.5, 1, 10, 1000)
	  :                             (0, 1, 2, 5, 20, 100);
	return one_of($its->{min}, grep { $_ >= $its->{min} && $_ <= $its->{max} } @values);
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
my $reloads = 0;

sub change_settings
{
	foreach (1 .. one_of(1, 1, 1, 1, 5))
	{
		my @names = grep { rand() < 0.3 } sort keys %setting;
		push @names, 'max_active_backends' if rand() < 0.5;
		my %values = map { $_ => some_value($_) } @names;
		$gate->set_soon(map { ("admission_gate.$_" => $values{$_}) } grep { defined $values{$_} } keys %values);
		$reloads++;
	}
	return;
}

# ----------------------------------------------------------------
# What the crowd does besides
# ----------------------------------------------------------------

$gate->value("CREATE ROLE $_ LOGIN") foreach ('web', 'monitor');
$gate->value($_) foreach ('ALTER ROLE monitor SET admission_gate.bypass = on', 'GRANT pg_monitor TO monitor');

# Counters of the view, whichever there are, but those that have to add up
my @counters = split /\n/, $gate->value(
	q{SELECT attname FROM pg_attribute WHERE attrelid = 'pg_stat_admission_gate'::regclass
	AND atttypid = 'int8'::regtype AND attname NOT IN ('admitted', 'completed', 'failed')
	ORDER BY attnum});

# Does the gate let somebody in if all holders wait for somebody in the queue, even if
# they do not lend?  If not, the settings have to change to get them out.
my $has_last_resort = grep { $_ eq 'stalls' } @counters;

$crowd->connect_to_itself;

# psql waits at the gate for one that waits for psql; and it writes to no table but
# that of the other connections to the same server: nobody finds a deadlock.
my $wait_options = $has_last_resort ? '' : 'PGOPTIONS="-c admission_gate.queue_timeout=5s" ';
my $psql = "$wait_options$bindir/psql -XAtq -o /dev/null -h $host -p $port -U $user postgres";
my $psql_out = $psql =~ s{-o /dev/null }{}r;

$crowd->expect(
	'08000', '08003', '08006', '08P01',    # connections of sessions to the server
	'26000',                               # not prepared, as that was refused
	'25P03',                               # idle for too long in a transaction
	'38000',                               # a program has failed
	'42501',                               # not the owner: user web
	'57P05',                               # idle for too long
);
$crowd->add_scripts(
	# Programs that connect
	["COPY log FROM PROGRAM '$psql_out -c \"SELECT count(*) FROM near\"'"],
	["COPY log FROM PROGRAM '$psql_out -c \"UPDATE near SET v = v + 1 WHERE id = :few RETURNING v\"'"],
	["COPY (SELECT 'SELECT count(*) FROM near;') TO PROGRAM '$psql'"],
	[ 'BEGIN', "COPY log FROM PROGRAM '$psql_out -c \"SELECT pg_sleep(0.1), 1\" | cut -d\"|\" -f2'", 500, 'COMMIT' ],

	# Sessions that take their time
	[ 'BEGIN', 'UPDATE t SET v = v + 1 WHERE id = :few', 3000, 'COMMIT' ],
	[ 'BEGIN', 'SELECT count(*) FROM t', 5000, 'SELECT 1', 'COMMIT' ],
	[ 'BEGIN', 'LOCK u', 2000, 'COMMIT' ],
	[ 'BEGIN', 'LOCK t IN SHARE MODE', 100, 'COMMIT' ],
	[ 'BEGIN', 'LOCK u NOWAIT', 'UPDATE u SET v = v + 1 WHERE id = :few', 500, 'ROLLBACK' ],
	[ 'BEGIN', 'SELECT pg_advisory_xact_lock(:few)', 2000, 'SELECT 1', 'COMMIT' ],
	[ 'SELECT pg_advisory_lock(:few)', 1000, 'SELECT pg_advisory_unlock_all()' ],
	[
		'SET idle_in_transaction_session_timeout = 500', 'BEGIN',
		'UPDATE t SET v = v + 1 WHERE id = :few', 1500,
		'COMMIT', 'RESET ALL'
	],
	[ 'SET client_connection_check_interval = 50', 'SELECT pg_sleep(1)', 'RESET ALL' ],
	[ sub { $_[0]->start("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 3000)) TO STDOUT") }, 3000 ],
	[
		\sub { $_[0]->start('COPY log FROM STDIN')->copy_data("1\n") }, 3000, sub { $_[0]->copy_data("2\n")->copy_done }
	],
	[
		'BEGIN', sub { $_[0]->parse('', 'SELECT id FROM t')->bind('p', '')->execute('p', 3)->sync },
		3000, sub { $_[0]->execute('p', 3)->sync }, 'COMMIT'
	],
	[ 'BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t; COMMIT', 1000, 'FETCH 10 FROM h', 'CLOSE h' ],

	# Time-outs
	[ 'SET lock_timeout = 30', 'LOCK u', 'UPDATE t SET v = v + 1 WHERE id = 1', 'RESET ALL' ],
	[
		'SET statement_timeout = 300',
		'SELECT count(*) FROM t',
		'UPDATE t SET v = v + 1 WHERE id = 1',
		'SELECT pg_sleep(0.2)',
		'RESET ALL'
	],

	# Transactions whose session forgets them
	["BEGIN; UPDATE t SET v = v + 1 WHERE id = :few; PREPARE TRANSACTION 'f:pid'"],
	[ 'BEGIN', 'INSERT INTO log VALUES (1)', 200, "PREPARE TRANSACTION 'g:pid'", 100, "COMMIT PREPARED 'g:pid'" ],

	# Statement scope
	[
		# Not with an open cursor into another statement that waits for a lock: it pins a
		# page, and nobody finds a deadlock with VACUUM, which waits for that.
		'SET admission_gate.scope = statement',
		'CALL commits()', 'BEGIN', 'DECLARE c CURSOR FOR SELECT * FROM t', 'FETCH 10 FROM c', 300, 'FETCH 10 FROM c',
		'CLOSE c',
		'SAVEPOINT a', 'SELECT 1/0', 'ROLLBACK TO a', 'UPDATE t SET v = v + 1 WHERE id = :few', 1000, 'COMMIT',
		'RESET ALL'
	],
	[
		'SET admission_gate.scope = statement; SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0',
		'BEGIN',
		'SELECT sum(v) FROM t',
		'SELECT sum(v) FROM t',
		'COMMIT',
		'RESET ALL'
	],

	# Many transactions in a row
	[ 'BEGIN; SELECT count(*) FROM t; COMMIT; ' x 20 ],
	[ ('UPDATE t SET v = v + 1 WHERE id = :few') x 10 ],

	# Another role, another pool, whatever else a session can set
	[ 'SET SESSION AUTHORIZATION web', 'SELECT 1', 'SELECT count(*) FROM t', 'RESET SESSION AUTHORIZATION' ],
	[
		sub { $_[0]->start('SET admission_gate.pool = p' . int(1 + rand 62)) },
		'SELECT pg_sleep(0.01)',
		'UPDATE t SET v = v + 1 WHERE id = :few',
		'RESET ALL'
	],
	[
		sub { set_something($_[0]) },
		sub { set_something($_[0]) },
		'SELECT count(*) FROM t',
		'BEGIN', 'UPDATE t SET v = v + 1 WHERE id = :few',
		200, 'COMMIT', 'RESET ALL'
	],
	[ 'BEGIN', 'SELECT 1', sub { set_something($_[0]) }, 'SELECT 1', 'COMMIT', 'RESET ALL' ],

	# What there is to see
	['SELECT * FROM pg_stat_admission_gate'],
	['SELECT * FROM pg_stat_admission_gate_backends'],
	['SELECT * FROM pg_stat_admission_gate_histogram'],
	['SELECT * FROM pg_stat_admission_gate_hot_spots'],
	['SELECT pg_stat_admission_gate_reset()']);
$crowd->add_scripts([ 'BEGIN', 'UPDATE far SET v = v + 1 WHERE id = :few', 1000, 'COMMIT' ],
	[ 'BEGIN', 'SAVEPOINT a', 'UPDATE far SET v = v + 1 WHERE id = :few', 'ROLLBACK TO a', 'SELECT 1', 'COMMIT' ])
  if $gate->has_contrib('postgres_fdw');
$crowd->add_scripts(
	[
		"SELECT dblink_connect('c', 'host=$host port=$port dbname=postgres')",
		"SELECT dblink_send_query('c', 'SELECT pg_sleep(0.1)')",
		300,
		"SELECT * FROM dblink_get_result('c') AS (x text)",
		"SELECT dblink_disconnect('c')"
	]) if $gate->has_contrib('dblink');

sub set_something
{
	my ($session) = @_;

	my $name = one_of(@of_session);
	my $value = some_value($name) // $setting{$name}{min};
	return $session->start("SET admission_gate.$name = '$value'");
}

# ----------------------------------------------------------------
# Programs beside the crowd
# ----------------------------------------------------------------

# Starts a program and returns its process id.
sub start_program
{
	my ($name, @command) = @_;

	my $pid = fork // die "could not fork: $!";
	return $pid if $pid != 0;
	open STDIN, '<', '/dev/null';
	open STDOUT, '>', "$directory/$name.out";
	open STDERR, '>&', \*STDOUT;
	{ exec { $command[0] } @command };
	POSIX::_exit(127);
}

sub start_pgbench
{
	my ($name, @options) = @_;
	return start_program($name, "$bindir/pgbench", '-n', '-h', $host, '-p', $port, @options, 'postgres');
}

# Looks at the views, from a role that passes the gate: nobody disturbs it.
append_to_file(
	"$directory/look", join '',
	map { "SELECT * FROM $_;\n" } 'pg_stat_admission_gate',
	'pg_stat_admission_gate_backends',
	'pg_stat_admission_gate_histogram',
	'pg_stat_admission_gate_hot_spots');

# One statement after the other, faster than the crowd: from a user who may be
# refused and disturbed, then it is started again
$gate->value($_)
  foreach ('CREATE TABLE hot AS SELECT id, 0 AS v FROM generate_series(1, 100) id', 'GRANT ALL ON hot TO web');
append_to_file("$directory/hot", "\\set id random(1, 20)\nUPDATE hot SET v = v + 1 WHERE id = :id;\n");
append_to_file("$directory/read", "\\set id random(1, 20)\nSELECT v FROM hot WHERE id = :id;\n");
append_to_file("$directory/block", "BEGIN;\nSELECT count(*) FROM hot;\nUPDATE hot SET v = v + 1 WHERE id = 1;\nEND;\n");

my ($pgbench, $pgbench_due, $pgbench_runs) = (undef, 0, 0);

sub keep_pgbench_going
{
	if ($pgbench)
	{
		# Sometimes its clients vanish all at once.
		kill KILL => $pgbench if rand() < 0.0005;
		return if waitpid($pgbench, WNOHANG) == 0;
		$pgbench = undef;
		$pgbench_due = time + some_time(10);
	}
	return if time < $pgbench_due;
	$pgbench = start_pgbench(
		'pgbench', '-U', 'web', '-c', one_of(1, 4, 12),
		'-T', one_of(1, 5, 20),
		'-M', one_of('simple', 'extended', 'prepared'),
		'--max-tries=0', map { ('-f', "$directory/$_\@" . one_of(1, 10)) } 'hot',
		'read', 'block');
	$pgbench_runs++;
	return;
}

# ----------------------------------------------------------------
# Disturbances
# ----------------------------------------------------------------

my %disturbances = map { $_ => 0 } ('stop', 'stop too late', 'cancel any', 'terminate any');

# Backends of clients, those of connections from the server to itself among them
my $others =
  q{backend_type IN ('client backend', 'parallel worker') AND usename <> 'monitor' AND pid <> pg_backend_pid()};

# Asleep: these hold no spinlock, nor a lock that others could not go on without.
my $asleep = q{wait_event_type IN ('Activity', 'Client', 'Extension', 'IPC', 'Lock', 'Timeout')
	AND wait_event <> 'SpinDelay'};

# Stops processes that sleep, for some time: any, those at the gate, all that wait, or
# the processes that tell the others of new settings.
sub stop_some
{
	my ($which, $most) = @{
		one_of(
			[ "$others", 3 ],
			[ "$others AND pid IN (SELECT pid FROM pg_stat_admission_gate_backends)", 3 ],
			[
				"$others AND pid IN (SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting')",
				1000
			],
			[
				"$others AND pid IN (SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state <> 'waiting')",
				1000
			],
			[ "backend_type IN ('checkpointer', 'background writer', 'walwriter')", 1 ])
	};
	my @pids = split /\n/,
	  $gate->value("SELECT pid FROM pg_stat_activity WHERE $which AND $asleep ORDER BY random() LIMIT $most");
	return if !@pids;

	my $seconds = some_time($longest_stop);
	foreach my $pid (@pids)
	{
		syswrite $to_keeper, sprintf "%d %d\n", $pid, 1000 * $seconds;
		$stopped{$pid} = time + $seconds;
		kill STOP => $pid;
	}
	$disturbances{stop} += @pids;

	# Whoever has woken up meanwhile goes on.
	my %sleeps = map { $_ => 1 }
	  split /\n/, $gate->value('SELECT pid FROM pg_stat_activity WHERE pid IN (' . join(',', @pids) . ") AND $asleep");
	my @awake = grep { !$sleeps{$_} } @pids;
	kill CONT => @awake;
	delete @stopped{@awake};
	$disturbances{'stop too late'} += @awake;
	return;
}

sub continue_due
{
	my @due = grep { $stopped{$_} < time } keys %stopped;
	kill CONT => @due;
	delete @stopped{@due};
	return;
}

sub continue_all
{
	kill CONT => keys %stopped;
	%stopped = ();
	return;
}

# By the functions of SQL, which signal programs that the backend has started, too
sub end_any
{
	my ($function) = @_;

	$gate->value(
		"SELECT count(pg_${function}_backend(pid)) FROM
		(SELECT pid FROM pg_stat_activity WHERE $others ORDER BY random() LIMIT 1) s");
	$disturbances{"$function any"}++;
	return;
}

# How much is going on: disturbances per second of every kind
my %rate;
my ($mood_due, $reload_due) = (0, 0);

sub change_mood
{
	my $unrest = one_of(0, 0.2, 1, 1, 4);

	%rate = (crowd => 3 * $unrest, stop => 0.3 * $unrest, cancel => 0.5 * $unrest, terminate => 0.3 * $unrest);
	$mood_due = time + 1 + rand 15;
	return;
}

sub is_time_for
{
	my ($what, $passed) = @_;
	return rand() < $rate{$what} * $passed;
}

my $last_disturbed = time;

sub disturb
{
	my $passed = min(time - $last_disturbed, 1);
	$last_disturbed = time;

	change_mood() if time > $mood_due;
	if (time > $reload_due)
	{
		change_settings();
		$reload_due = time + one_of(0.1, 0.5, 1, 2, 5, 5, 20);
	}
	$crowd->disturb if is_time_for('crowd', $passed);
	stop_some() if is_time_for('stop', $passed);
	end_any('cancel') if is_time_for('cancel', $passed);
	end_any('terminate') if is_time_for('terminate', $passed);
	continue_due();
	keep_pgbench_going();
	look() if time > $main::next_look;
	return;
}

# ----------------------------------------------------------------
# Looking
# ----------------------------------------------------------------

# Counters as they were at the last look, and what they have gone up by
my %last_count = map { $_ => 0 } @counters;
my %counted = %last_count;

# The longest that anybody has been seen to wait who was not stopped, and the longest
# without an answer, s
my ($waited, $unanswered) = (0, 0);
our $next_look = 0;

sub look
{
	$next_look = time + 0.5;

	# A reset, or a pool that is gone, lets some begin again.
	my @counts = split /\|/,
	  $gate->value('SELECT ' . join(', ', map { "sum($_)" } @counters) . ' FROM pg_stat_admission_gate');
	foreach my $counter (@counters)
	{
		my $count = shift @counts;
		$counted{$counter} += $count - ($count >= $last_count{$counter} ? $last_count{$counter} : 0);
		$last_count{$counter} = $count;
	}

	my $but = join ',', 0, keys %stopped;
	my $longest = $gate->value(
		"SELECT coalesce(max(wait_time), 0) / 1000 FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting' AND pid NOT IN ($but)"
	);
	$waited = max($waited, $longest);
	$unanswered = max($unanswered, $crowd->longest_unanswered);
	return;
}

# The gauges of the pools are those of the backends.
my $gauges_match = q{SELECT count(*) = 0
	FROM (SELECT pool, running, lent, waiting FROM pg_stat_admission_gate) g
	FULL JOIN (SELECT pool,
		count(*) FILTER (WHERE gate_state = 'running') AS running, count(*) FILTER (WHERE gate_state = 'lent') AS lent,
		count(*) FILTER (WHERE gate_state = 'waiting') AS waiting
		FROM pg_stat_admission_gate_backends GROUP BY pool) b USING (pool)
	WHERE (coalesce(g.running, 0), coalesce(g.lent, 0), coalesce(g.waiting, 0))
		IS DISTINCT FROM (coalesce(b.running, 0), coalesce(b.lent, 0), coalesce(b.waiting, 0))};

my $totals_match =
  'SELECT bool_and(admitted = completed + failed + running + lent + long + paused) FROM pg_stat_admission_gate';

# Lets the crowd go on until the query returns true at some moment.  Nobody may be
# stopped halfway meanwhile.
sub is_true_at_times
{
	my ($sql) = @_;

	continue_all();
	my $deadline = time + 60;
	while (time < $deadline)
	{
		return 1 if $gate->value($sql) eq 't';
		$crowd->step;
		usleep(5_000);
	}
	return 0;
}

# Who does what, and waits for whom
sub everybody
{
	return $gate->value(
		'SELECT pid, pg_blocking_pids(pid), state, wait_event_type, wait_event, now() - state_change, query
		FROM pg_stat_activity WHERE pid <> pg_backend_pid() ORDER BY state_change');
}

# What has changed since the last minute
my %before;

sub since_before
{
	my ($what, %now) = @_;

	my $then = $before{$what} // {};
	my @changes = map { [ $_, $now{$_} - ($then->{$_} // 0) ] } sort keys %now;
	$before{$what} = \%now;
	return join ', ', map { "$_->[0] $_->[1]" } grep { $_->[1] } @changes;
}

sub ok_minute
{
	my ($minute) = @_;
	my @wrong;

	look();
	push @wrong, 'gauges of pools and backends differ' if !is_true_at_times($gauges_match);
	push @wrong, 'totals do not add up' if !is_true_at_times($totals_match);
	push @wrong, "a backend waited for $waited s" if $waited > $longest_wait;
	push @wrong, "a session was without an answer for $unanswered s" if $unanswered > $longest_wait;
	is(join('; ', @wrong), '', "minute $minute: gauges and totals add up, and nobody waits without end")
	  or diag $gate->report, "\n", everybody();

	my %ends = %{ $crowd->ends };
	note "minute $minute: statements ", sum0(values %ends) - sum0(values %{ $before{ends} // {} }),
	  '; ', since_before('ends', %ends);
	note "minute $minute: ", since_before('counted', %counted),
	  sprintf '; longest wait %.1f s, longest without an answer %.1f s', $waited, $unanswered;
	note "minute $minute: disturbances ",
	  since_before(
		'disturbances', %disturbances, %{ $crowd->{disturbances} },
		reload => $reloads,
		'run of pgbench' => $pgbench_runs);
	($waited, $unanswered) = (0, 0);
	return;
}

# ----------------------------------------------------------------
# The test
# ----------------------------------------------------------------

my $viewer =
  start_pgbench('viewer', '-U', 'monitor', '-c', '2', '-R', '40', '-T', int($minutes * 60), '-f', "$directory/look");

foreach my $minute (1 .. $minutes)
{
	$crowd->work(60, \&disturb);
	ok_minute($minute);
}

# The end.  Without a last resort, nobody may wait for one in the queue.
continue_all();
waitpid $viewer, 0;
is($?, 0, 'who looked at the views all the time was not disturbed') or diag slurp_file("$directory/viewer.out");
if ($pgbench)
{
	kill KILL => $pgbench;
	waitpid $pgbench, 0;
}
$gate->value('ALTER SYSTEM RESET ALL');
$gate->set(max_active_backends => $has_last_resort ? 2 : 0, mode => 'enforce', pools => '');
$crowd->ok_finishes;
$gate->set(max_active_backends => 2);
ok( $gate->await_true(
		sub { $gate->value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") == 1 },
		'all sessions to be gone'),
	'and is gone') or diag everybody();
$gate->end_prepared_transactions;
note $gate->report;
$gate->ok_quiet('after the soak');
$gate->ok_adds_up('after the soak');
$gate->ok_one_slot;
$node->stop;
$crowd->ok_log;
is( join("\n",
		grep { /\(PID \d+\) was terminated by|reinitializing|TRAP:|PANIC:/ } split /\n/,
		slurp_file($node->logfile)),
	'',
	'no process has crashed');

close $to_keeper;
waitpid $keeper, 0;

done_testing();
