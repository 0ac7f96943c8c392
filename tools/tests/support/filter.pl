# Runs a program with a filter of system calls (seccomp), which allows all calls but the given ones: `memfd_create` is
# not permitted (EPERM), options of sockets, as `setsockopt:LEVEL:OPTION`, do not exist (ENOPROTOOPT).
#
#     perl filter.pl [REFUSED...] -- PROGRAM [ARGUMENT...]

use strict;
use warnings;
use POSIX ();

my ($PR_SET_SECCOMP, $PR_SET_NO_NEW_PRIVS, $SECCOMP_MODE_FILTER) = (22, 38, 2);
my ($SECCOMP_RET_ERRNO, $SECCOMP_RET_ALLOW) = (0x00050000, 0x7fff0000);
# BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K.
my ($LOAD, $COMPARE, $RETURN) = (0x20, 0x15, 0x06);
# Where `struct seccomp_data` has the number of the call, and its second and third argument.
my ($NUMBER, $SECOND, $THIRD) = (0, 24, 32);
my ($EPERM, $ENOPROTOOPT) = (1, 92);

my %all_numbers = (
    x86_64 => { prctl => 157, setsockopt => 54, memfd_create => 319 },
    aarch64 => { prctl => 167, setsockopt => 208, memfd_create => 279 },
);
my $machine = (POSIX::uname())[4];
my $numbers = $all_numbers{$machine} or die "filter.pl: the numbers of system calls of $machine are not known\n";

my $filter = "";

# Appends an instruction. A comparison that fails skips some of the next ones.
sub instruction {
    my ($code, $skipped, $value) = @_;
    $filter .= pack("SCCL", $code, 0, $skipped, $value);
}

while (defined(my $refused = shift)) {
    last if $refused eq "--";
    my ($call, $level, $option) = split(/:/, $refused);
    my $number = $numbers->{$call} // die "filter.pl: the number of $call is not known\n";
    instruction($LOAD, 0, $NUMBER);
    instruction($COMPARE, defined $option ? 5 : 1, $number);
    if (defined $option) {
        instruction($LOAD, 0, $SECOND);
        instruction($COMPARE, 3, $level);
        instruction($LOAD, 0, $THIRD);
        instruction($COMPARE, 1, $option);
    }
    instruction($RETURN, 0, $SECCOMP_RET_ERRNO | (defined $option ? $ENOPROTOOPT : $EPERM));
}
instruction($RETURN, 0, $SECCOMP_RET_ALLOW);

# `struct sock_fprog`: the number of instructions, and their address.
my $program = pack("S x6 P", length($filter) / 8, $filter);
syscall($numbers->{prctl}, $PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 or die "filter.pl: no new privileges: $!\n";
syscall($numbers->{prctl}, $PR_SET_SECCOMP, $SECCOMP_MODE_FILTER, $program, 0, 0) == 0 or die "filter.pl: $!\n";
exec { $ARGV[0] } @ARGV or die "filter.pl: $ARGV[0]: $!\n";
