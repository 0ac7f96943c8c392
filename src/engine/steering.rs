//! Steering: which socket of an address a packet goes to.
//!
//! All sockets of one user that are bound to one address and port 4791 form a `SO_REUSEPORT` group. A classic BPF
//! program picks the socket by the block of the packet's destination queue pair. A group of one needs none.
//!
//! Numbers of block 0 from 2,048 on belong to no queue pair: a packet with such a number goes to the socket that it
//! counts. So the members of a group find out in which order the kernel keeps their sockets, which it tells nobody.

use super::sys::Instruction;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

/// Longest program that the kernel takes.
const MAX_INSTRUCTIONS: usize = 4_096;
/// Blocks whose search fits into it: a leaf has three instructions, a branch two, the rest nine.
const MAX_BLOCKS: usize = (MAX_INSTRUCTIONS - 9) / 5;
/// The second word of the base transport header: a reserved byte, then the destination queue pair.
const DESTINATION_OFFSET: u32 = 4;
/// The first number that counts a socket instead of naming a queue pair.
const FIRST_PROBE: u32 = 0x800;

/// The destination that leads to the socket of this number.
pub(super) fn probe_destination(index: u16) -> u32 {
    FIRST_PROBE | u32::from(index) & 0x7ff
}

/// The socket that a destination counts, if it names no queue pair.
pub(super) fn probed_index(destination: u32) -> Option<u16> {
    (FIRST_PROBE..0x1000).contains(&destination).then_some((destination & 0x7ff) as u16)
}

fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, value }
}

/// The program that sends packets for the blocks of `members[i]` to socket `i`, and all others to the first socket,
/// where they are counted. Blocks that do not fit into a program go there, too.
pub(super) fn program(members: &[&[u16]]) -> Vec<Instruction> {
    let targets = members.iter().enumerate().skip(1);
    let mut blocks: Vec<(u32, u32)> = targets
        .flat_map(|(index, blocks)| blocks.iter().map(move |block| (u32::from(*block), index as u32)))
        .take(MAX_BLOCKS)
        .collect();
    blocks.sort_unstable();
    let mut program = vec![
        plain(LOAD_WORD, DESTINATION_OFFSET),
        plain(AND, 0xff_ffff),
        Instruction { code: JUMP_IF_AT_LEAST, jump_true: 3, jump_false: 0, value: 0x1000 },
        Instruction { code: JUMP_IF_AT_LEAST, jump_true: 0, jump_false: 2, value: FIRST_PROBE },
        plain(AND, 0x7ff),
        plain(RETURN_ACCUMULATOR, 0),
        plain(SHIFT_RIGHT, 12),
    ];
    search(&mut program, &blocks);
    program
}

/// A binary search: as many steps as the number of blocks has bits.
fn search(program: &mut Vec<Instruction>, blocks: &[(u32, u32)]) {
    match blocks {
        [] => program.push(plain(RETURN, 0)),
        [(block, index)] => {
            program.push(Instruction { code: JUMP_IF_EQUAL, jump_true: 0, jump_false: 1, value: *block });
            program.push(plain(RETURN, *index));
            program.push(plain(RETURN, 0));
        }
        _ => {
            let (lower, upper) = blocks.split_at(blocks.len() / 2);
            program.push(Instruction { code: JUMP_IF_AT_LEAST, jump_true: 0, jump_false: 1, value: upper[0].0 });
            let jump = program.len();
            program.push(plain(JUMP, 0));
            search(program, lower);
            program[jump].value = (program.len() - jump - 1) as u32;
            search(program, upper);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What the kernel does with such a program.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut place, mut accumulator) = (0, 0u32);
        loop {
            let instruction = program[place];
            place += 1;
            let mut branch = |taken: bool| {
                place += usize::from(if taken { instruction.jump_true } else { instruction.jump_false });
            };
            match instruction.code {
                LOAD_WORD => {
                    let offset = instruction.value as usize;
                    accumulator = u32::from_be_bytes(packet[offset..offset + 4].try_into().unwrap());
                }
                SHIFT_RIGHT => accumulator >>= instruction.value,
                AND => accumulator &= instruction.value,
                JUMP => place += instruction.value as usize,
                JUMP_IF_EQUAL => branch(accumulator == instruction.value),
                JUMP_IF_AT_LEAST => branch(accumulator >= instruction.value),
                RETURN => return instruction.value,
                RETURN_ACCUMULATOR => return accumulator,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn packet_for(qpn: u32) -> [u8; 12] {
        let mut packet = [0xa5; 12];
        packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        packet
    }

    #[test]
    fn packets_go_to_the_owner_of_their_block() {
        let program = program(&[&[0x111], &[0x222, 0x333], &[0x444]]);
        for (qpn, index) in [(0x11_1005, 0), (0x22_2000, 1), (0x33_3fff, 1), (0x44_4001, 2), (0x55_5123, 0), (1, 0)] {
            assert_eq!(run(&program, &packet_for(qpn)), index, "{qpn:#x}");
        }
    }

    #[test]
    fn group_of_one_takes_everything() {
        let program = program(&[&[0x111]]);
        assert_eq!(run(&program, &packet_for(0x77_7777)), 0);
        assert_eq!(run(&program, &packet_for(1)), 0);
    }

    #[test]
    fn probes_go_to_the_socket_that_they_count() {
        let program = program(&[&[0x111], &[0x222]]);
        for index in [0, 1, 77, 0x7ff] {
            let destination = probe_destination(index);
            assert_eq!(run(&program, &packet_for(destination)), index.into());
            assert_eq!(probed_index(destination), Some(index));
        }
        assert_eq!([probed_index(1), probed_index(0x1000), probed_index(0x22_2800)], [None; 3]);
    }

    #[test]
    fn program_stays_within_the_kernels_limit_and_finds_every_block_in_it() {
        let blocks: Vec<u16> = (1..0xfff).collect();
        let program = program(&[&[0xfff], &blocks]);
        assert!(program.len() <= MAX_INSTRUCTIONS, "{}", program.len());
        for block in 1..=MAX_BLOCKS as u32 {
            assert_eq!(run(&program, &packet_for(block << 12)), 1, "{block}");
        }
        assert_eq!(run(&program, &packet_for(0xffe << 12)), 0, "beyond the limit");
    }
}
