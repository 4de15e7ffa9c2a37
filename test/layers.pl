#!/usr/bin/perl
#
# Shows which source file uses which, from the bottom of the house to its top, and refuses
# an arrow upward, and so a circle, and a way into the core past its public headers.
#
# Usage: test/layers.pl BUILD, a directory where the extension was built: which file calls
# what, and has what, is read from the object files there by nm.

use strict;
use warnings;

use Cwd            qw(abs_path);
use File::Basename qw(dirname);

# Every file, the bottom first: it may use those in the lines above, not those in its own.
my @layers = map { [split] } split /\n/, <<'END';
compat
core/slots
core/limit_control core/cpu_control core/long_control
core/slots_internal
core/wait_queue
core/hot_spots core/expected
core/pools
core/at_work core/cpu_limit
core/acquire
core/long_queues
core/views
gate
process pool_parser
settings
snapshot sampler
worker
my_slot
wanted long_statements
admission_gate
END

# What the other files do not see of the core
my %inside = ('core/slots_internal' => 1);

my $build = shift                   or die "usage: $0 BUILD\n";
chdir dirname(abs_path($0)) . '/..' or die "cannot enter the sources: $!\n";

my %uses;      # file => the files it uses
my %home;      # name of C => the file that has it
my %wanted;    # file => names of C that it has not

for my $source (glob 'admission_gate.c src/*.[ch] src/core/*.[ch]')
{
	(my $file = $source) =~ s{^src/|\.[ch]$}{}g;
	open(my $text, '<', $source) or die "$source: $!\n";
	$uses{$file} //= {};
	/^#include "((?:core\/)?\w+)\.h"/ && -e "src/$1.h" && $uses{$file}{$1}++ while <$text>;
	next if $source !~ /\.c$/;

	my $object = "$build/" . $source =~ s/c$/o/r;
	open(my $names, '-|', 'nm', $object) or die "nm: $!\n";
	while (<$names>)
	{
		$home{$1} = $file if /^\S+ [BDRTV] (\S+)$/;
		$wanted{$file}{$1} = 1 if /^\s+U (\S+)$/;
	}
	close($names) or die "$object cannot be read: is the extension built there?\n";
}
for my $file (keys %wanted)
{
	$uses{$file}{$_} = 1 for grep { defined } @home{ keys %{ $wanted{$file} } };
}

my @complaints;
my %below;
for my $layer (@layers)
{
	for my $file (grep { $uses{$_} } @$layer)
	{
		my @used = grep { $_ ne $file } sort keys %{ $uses{$file} };
		printf "%-22s %s\n", $file, "@used";
		push @complaints, map { "$file uses $_, which is not below it\n" } grep { !$below{$_} } @used;
		push @complaints,
		  map { "$file looks inside the core, at $_\n" } grep { $inside{$_} && $file !~ /^core\// } @used;
	}
	@below{@$layer} = (1) x @$layer;
}
push @complaints, map { "$_ is in no layer\n" } grep { !$below{$_} } sort keys %uses;
print STDERR @complaints;
exit !!@complaints;
