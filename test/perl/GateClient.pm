# One client connection, in PostgreSQL's frontend/backend protocol 3.0.
#
# The tests need what libpq hides: to send without waiting for the answer,
# Execute with a row limit, several messages before one Sync, to stop reading
# for a while, to hang up.  Authentication is "trust", all values are text.

package GateClient;

use strict;
use warnings;

use Carp;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use PostgreSQL::Test::Utils ();
use Time::HiRes             qw(time usleep);

# For how many seconds to wait for an answer, or for anything else in these tests
our $patience = $PostgreSQL::Test::Utils::timeout_default;

my $protocol_version = 196608;
my $cancel_code = 80877102;

# Connects.  Startup parameters, such as user, database or options, can be
# given; session is the same as options "-c NAME=VALUE ...".  Dies if the server
# refuses, unless may_fail is set: then closed() is true and result() tells why.
sub new
{
	my ($class, $node, %param) = @_;
	my $may_fail = delete $param{may_fail};
	my $session = delete $param{session};

	my $self = bless {
		node => $node,
		in => '',
		unanswered => 1,
		result => _empty_result()
	}, $class;
	$self->{socket} = _connect($node);
	if (!$self->{socket})
	{
		croak "could not connect to the server: $!" if !$may_fail;
		$self->{closed} = 1;
		return $self;
	}

	$param{user}     //= getpwuid($<);
	$param{database} //= 'postgres';
	$param{options}  //= options($session) if $session;
	my $body = pack('N', $protocol_version) . join('', map { "$_\0$param{$_}\0" } sort keys %param) . "\0";
	$self->_write(pack('N', 4 + length $body) . $body);

	my $result = $self->result;
	croak 'the server refused the connection: ' . ($result->{error} ? $result->{error}{M} : 'no reason given')
	  if $self->{closed} && !$may_fail;
	return $self;
}

# Settings as command-line options
sub options
{
	my ($settings) = @_;
	return join ' ', map { "-c $_=$settings->{$_}" } sort keys %{ $settings // {} };
}

sub _connect
{
	my ($node) = @_;
	return $node->host =~ m{^/}
	  ? IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port)
	  : IO::Socket::INET->new(PeerAddr => $node->host, PeerPort => $node->port);
}

# Process id of the server process
sub pid    { return $_[0]->{pid}; }
sub closed { return $_[0]->{closed}; }

# Sending
sub _write
{
	my ($self, $bytes) = @_;

	local $SIG{PIPE} = 'IGNORE';
	while (length $bytes && !$self->{closed})
	{
		my $n = syswrite $self->{socket}, $bytes;
		last if !defined $n;    # reading will tell
		substr($bytes, 0, $n, '');
	}
	return;
}

sub message
{
	my ($self, $type, $body) = @_;

	$body //= '';
	$self->_write($type . pack('N', 4 + length $body) . $body);
	return $self;
}

# Sends a query in the simple protocol and does not wait for the answer.
sub start { my ($self, $sql) = @_; $self->{unanswered}++; return $self->message('Q', "$sql\0"); }

# The extended protocol.  An empty name is the unnamed statement or portal.
sub parse   { my ($self, $statement, $sql) = @_; return $self->message('P', pack 'Z* Z* n', $statement, $sql, 0); }
sub execute { my ($self, $portal, $rows) = @_;   return $self->message('E', pack 'Z* N', $portal, $rows // 0); }
sub sync    { my ($self) = @_;                   $self->{unanswered}++; return $self->message('S'); }
sub flush   { my ($self) = @_;                   return $self->message('H'); }

sub bind
{
	my ($self, $portal, $statement, @values) = @_;
	my $head = pack 'Z* Z* n n', $portal, $statement, 0, scalar @values;
	return $self->message('B', $head . pack('(N/a*)*', @values) . pack('n', 0));
}

sub start_extended
{
	my ($self, $sql, @values) = @_;
	return $self->parse('', $sql)->bind('', '', @values)->execute('')->sync;
}

# Bind, Execute and Sync of a statement prepared before
sub start_prepared
{
	my ($self, $statement, @values) = @_;
	return $self->bind('', $statement, @values)->execute('')->sync;
}

sub prepare { my ($self, $statement, $sql) = @_; return $self->parse($statement, $sql)->sync->_text; }

# Sends a FunctionCall message, for a function without arguments.
sub call_function
{
	my ($self, $oid) = @_;
	$self->{unanswered}++;
	return $self->message('F', pack 'Nnnn', $oid, 0, 0, 0);
}

# The data of COPY FROM STDIN
sub copy_data { return $_[0]->message('d', $_[1]); }
sub copy_done { return $_[0]->message('c'); }

# Receiving
sub _empty_result { return { rows => [], tags => [], copy => '', notices => [], suspended => 0 }; }

# Waits for the answer to the oldest unanswered query or Sync.  Returns
#	rows		array of rows, which are arrays of values
#	tags		command tags
#	copy		data of COPY TO STDOUT
#	notices		texts of notices
#	error		if any, a hash of its fields by their letters: C is the SQLSTATE
#	status		of the transaction: I, T or E
#	suspended	number of portals suspended by their row limits
#	stopped		what ended the reading early, see read_until
sub result { return $_[0]->read_until(''); }

# As result, but also returns on the arrival of a message of these types.
sub read_until
{
	my ($self, $types) = @_;

	my $deadline = time + $patience;
	$self->{stopped} = undef;
	until ($self->_take_messages($types))
	{
		croak 'timed out waiting for an answer of the server' if time > $deadline;
		$self->_receive($deadline - time);
	}
	my $result = $self->{result};
	$result->{stopped} = $self->{stopped};
	@$self{qw(result answered)} = (_empty_result(), 0) if !$self->{stopped};
	return $result;
}

# Is there an answer to all that was sent, or the end of the connection?
sub done
{
	my ($self) = @_;

	while (!$self->{closed} && $self->_receive(0)) { }
	return $self->_take_messages('');
}

# Reads what is there, at most once, waiting up to that many seconds, or until a
# signal comes, such as of a child's end.  Returns false if nothing came.
sub _receive
{
	my ($self, $timeout) = @_;

	my $select = IO::Select->new($self->{socket});
	return 0 if !$select->can_read($timeout > 0 ? $timeout : 0);
	if (!sysread $self->{socket}, $self->{in}, 65536, length $self->{in})
	{
		$self->{closed} = 1;
		close $self->{socket};
	}
	return 1;
}

# Takes the messages that have arrived up to the end of an answer.
sub _take_messages
{
	my ($self, $types) = @_;

	return 1 if $self->{answered} || ($types eq '' && $self->{unanswered} == 0);
	while (length $self->{in} >= 5)
	{
		my ($type, $length) = unpack 'aN', $self->{in};
		last if length $self->{in} < 1 + $length;
		my $body = substr $self->{in}, 5, $length - 4;
		substr $self->{in}, 0, 1 + $length, '';

		$self->_take_message($type, $body);
		return 1 if $self->{answered};
		if ($types ne '' && index($types, $type) >= 0)
		{
			$self->{stopped} = $type;
			return 1;
		}
	}
	return $self->{closed};
}

sub _take_message
{
	my ($self, $type, $body) = @_;
	my $result = $self->{result};

	push @{ $result->{rows} }, [ _values($body) ] if $type eq 'D';
	push @{ $result->{tags} }, unpack 'Z*', $body if $type eq 'C';
	push @{ $result->{notices} }, _fields($body)->{M} if $type eq 'N';
	$result->{error} //= _fields($body) if $type eq 'E';
	$result->{copy} .= $body if $type eq 'd';
	$result->{suspended}++ if $type eq 's';
	($self->{pid}, $self->{key}) = unpack 'Na*', $body if $type eq 'K';
	if ($type eq 'Z')
	{
		$result->{status} = $body;
		$self->{unanswered}--;
		$self->{answered} = 1;
	}
	return;
}

# The fields of an ErrorResponse or NoticeResponse message, by their letters
sub _fields
{
	my ($body) = @_;
	return { map { substr($_, 0, 1) => substr($_, 1) } split /\0/, $body };
}

# The values of a DataRow message
sub _values
{
	my ($n, $body) = unpack 'n a*', $_[0];

	return map {
		my $length = unpack 'l>', substr $body, 0, 4, '';
		$length < 0 ? undef : substr $body, 0, $length, '';
	} 1 .. $n;
}

# Rows as psql -At prints them; dies if there was an error.
sub _text
{
	my ($self) = @_;

	my $result = $self->result;
	croak "the server said: $result->{error}{C}: $result->{error}{M}"
	  if $result->{error};
	croak 'the server closed the connection' if $self->{closed};
	return join "\n", map {
		join '|',
		  map { $_ // '' }
		  @$_
	} @{ $result->{rows} };
}

# Both
#
# Runs queries in the simple protocol and returns the rows of the last one as text; dies if
# there is an error.
sub query
{
	my ($self, @sql) = @_;
	return (map { $self->start($_)->_text } @sql)[-1];
}

# The same for a query that was started before.
sub finish { return $_[0]->_text; }

# Waits for what was started before and returns its SQLSTATE, '00000' if it did
# well, '08006' if the connection ended without a word.
sub sqlstate { my ($self) = @_; return $self->sqlstate_of($self->result); }

sub sqlstate_of
{
	my ($self, $result) = @_;
	return $result->{error} ? $result->{error}{C} : $self->{closed} ? '08006' : '00000';
}

# Asks the server to cancel what the connection is doing, and waits until the
# request was taken.
sub cancel
{
	my ($self) = @_;

	my $socket = _connect($self->{node}) or return;
	my $body = pack('NN', $cancel_code, $self->{pid}) . $self->{key};
	syswrite $socket, pack('N', 4 + length $body) . $body;
	sysread $socket, my $nothing, 1;
	return;
}

# Cancels what the connection is doing, and waits until that has ended: once a second, as
# a request that comes before the statement does nothing.
sub stop
{
	my ($self) = @_;

	foreach my $try (1 .. $patience)
	{
		my $end = time + 1;
		$self->cancel;
		usleep(5_000) until $self->done || time > $end;
		last if $self->done;
	}
	return $self->result;
}

# Ends the connection as a client should.
sub quit { my ($self) = @_; return $self->message('X')->hang_up; }

# Ends the connection as a client that was killed.
sub hang_up
{
	my ($self) = @_;

	close $self->{socket} if !$self->{closed};
	$self->{closed} = 1;
	return;
}

1;
