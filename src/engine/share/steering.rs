//! Steering: the choice of an address's socket for each packet.
//!
//! All sockets of one user that are bound to one address and port 4791 form a `SO_REUSEPORT` group. A classic BPF
//! program picks the socket by the block of the packet's destination queue pair. A group of one needs none.
//!
//! QPNs of block 0 from 2,048 on belong to no queue pair: a packet with such a number goes to the socket whose index it
//! encodes. With these numbers the members of a group determine the order in which the kernel keeps their sockets,
//! which it does not report.

use std::collections::BTreeMap;

use super::management::{
    ATTRIBUTE_OFFSET, DESTINATION_OFFSET, FIRST_ID_OFFSET, ID_BITS, RECEIVER_OFFSET, SECOND_ID_OFFSET, SERVICE_OFFSET,
};
use super::registry::{Member, MemberListener, SLOTS};
use crate::sys::Instruction;
use crate::transport::MANAGEMENT_QPN;
use crate::wire::mad::Attribute;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
/// Not an instruction: marks a leaf while the program is built.
const LEAF: u16 = u16::MAX;

/// Longest program that the kernel accepts.
const MAX_INSTRUCTIONS: usize = 4_096;
/// Most listeners of an address whose requests are steered, at most one per [`NEAR_BLOCKS`]: each has a leaf and a
/// branch.
const MAX_SERVICES: usize = 64;
/// Instructions before the search of the blocks.
const BEFORE_SEARCH: usize = 22;
/// The jump to the search of the services.
const TO_SERVICES: usize = BEFORE_SEARCH - 4;
/// Most blocks whose search fits into it. A leaf has one instruction, and so has a branch; but a branch with more than
/// [`NEAR_BLOCKS`] on its lower side has two, and there are fewer of these than one per [`NEAR_BLOCKS`] blocks. Each
/// socket has one instruction.
const MAX_BLOCKS: usize =
    (MAX_INSTRUCTIONS - BEFORE_SEARCH - SLOTS - 2 * MAX_SERVICES) * NEAR_BLOCKS / (2 * NEAR_BLOCKS + 1);
/// Most blocks whose search a conditional jump can skip: 255 instructions.
const NEAR_BLOCKS: usize = 128;
/// The first QPN that stands for a socket index instead of a queue pair.
const FIRST_PROBE: u32 = 0x800;

/// Returns the destination QPN that is steered to the socket with this index.
pub(super) fn probe_destination(index: u16) -> u32 {
    FIRST_PROBE | u32::from(index) & 0x7ff
}

/// Returns the socket index of a destination QPN, if it is not one of a queue pair.
pub(super) fn probed_index(destination: u32) -> Option<u16> {
    (FIRST_PROBE..0x1000).contains(&destination).then_some((destination & 0x7ff) as u16)
}

fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, value }
}

/// A member of a group, as the program sees it.
#[derive(Clone, Copy, Default)]
pub(super) struct Steered<'a> {
    /// Blocks whose packets are for its socket.
    pub(super) blocks: &'a [u16],
    /// Listeners whose requests are for its socket. Of several members with one service, the latest listener gets
    /// them.
    pub(super) listeners: &'a [MemberListener],
}

impl<'a> Steered<'a> {
    pub(super) fn of(member: &'a Member) -> Self {
        Self { blocks: &member.blocks, listeners: &member.listeners }
    }
}

/// Builds the program that sends packets for the blocks of `members[i]`, and requests for its listeners, to socket `i`.
/// Packets for other blocks and listeners go to any socket, where they are counted or answered. So do those that do not
/// fit into a program; they are forwarded.
pub(super) fn program(members: &[Steered<'_>]) -> Vec<Instruction> {
    let mut program = vec![
        // The second word of the base transport header: a reserved byte, then the destination queue pair.
        plain(LOAD_WORD, DESTINATION_OFFSET as u32),
        plain(AND, 0xff_ffff),
        Instruction { code: JUMP_IF_AT_LEAST, jump_true: 18, jump_false: 0, value: 0x1000 },
        Instruction { code: JUMP_IF_EQUAL, jump_true: 3, jump_false: 0, value: MANAGEMENT_QPN.value() },
        Instruction { code: JUMP_IF_AT_LEAST, jump_true: 0, jump_false: 16, value: FIRST_PROBE },
        plain(AND, 0x7ff),
        plain(RETURN_ACCUMULATOR, 0),
        // A datagram to queue pair 1: requests by the service, other messages by the receiver's communication id, those
        // of the discovery by the receiver.
        plain(LOAD_HALF, ATTRIBUTE_OFFSET as u32),
        Instruction { code: JUMP_IF_EQUAL, jump_true: 5, jump_false: 0, value: Attribute::SERVICE_ID_REPLY.0.into() },
        Instruction { code: JUMP_IF_EQUAL, jump_true: 7, jump_false: 0, value: Attribute::CONNECT_REQUEST.0.into() },
        Instruction { code: JUMP_IF_EQUAL, jump_true: 6, jump_false: 0, value: Attribute::SERVICE_ID_REQUEST.0.into() },
        Instruction { code: JUMP_IF_EQUAL, jump_true: 7, jump_false: 0, value: Attribute::DISCOVERY.0.into() },
        plain(LOAD_WORD, SECOND_ID_OFFSET as u32),
        plain(JUMP, 1),
        plain(LOAD_WORD, FIRST_ID_OFFSET as u32),
        plain(SHIFT_RIGHT, ID_BITS),
        plain(JUMP, 5),
        plain(LOAD_WORD, SERVICE_OFFSET as u32 + 4),
        // To the search of the services.
        plain(JUMP, 0),
        plain(LOAD_WORD, RECEIVER_OFFSET as u32),
        plain(AND, 0xff_ffff),
        plain(SHIFT_RIGHT, 12),
    ];
    search(&mut program, &sorted_blocks(members));
    program[TO_SERVICES].value = (program.len() - TO_SERVICES - 1) as u32;
    search(&mut program, &sorted_services(members));
    end_at_sockets(&mut program, members.len());
    program
}

/// Returns the blocks and their sockets.
fn sorted_blocks(members: &[Steered<'_>]) -> Vec<(u32, u32)> {
    let of = |(index, member): (usize, &Steered<'_>)| {
        member.blocks.iter().map(|block| (u32::from(*block), index as u32)).collect::<Vec<_>>()
    };
    let mut blocks: Vec<(u32, u32)> = members.iter().enumerate().flat_map(of).take(MAX_BLOCKS).collect();
    blocks.sort_unstable();
    blocks
}

/// Returns the latest services and their sockets.
fn sorted_services(members: &[Steered<'_>]) -> Vec<(u32, u32)> {
    let mut listeners: Vec<(MemberListener, u32)> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        listeners.extend(member.listeners.iter().map(|listener| (*listener, index as u32)));
    }
    listeners.sort_unstable_by_key(|(listener, _)| std::cmp::Reverse(listener.number));
    let mut services = BTreeMap::new();
    for (listener, index) in listeners {
        if services.len() == MAX_SERVICES {
            break;
        }
        services.entry(listener.service).or_insert(index);
    }
    services.into_iter().collect()
}

/// Resolves leaves to jumps to the one instruction that returns their socket's index. A return counts twice where Linux
/// limits the size of programs (`net.core.optmem_max`; 20,480 bytes before 6.7), so leaves do not return by themselves.
fn end_at_sockets(program: &mut Vec<Instruction>, sockets: usize) {
    let end = program.len();
    for (index, instruction) in program.iter_mut().enumerate().filter(|(_, instruction)| instruction.code == LEAF) {
        *instruction = plain(JUMP, (end - index - 1) as u32 + instruction.value);
    }
    program.extend((0..sockets.max(1) as u32).map(|index| plain(RETURN, index)));
}

/// Appends a binary search: as many steps as the number of blocks has bits. Leaves hold the index of their socket.
fn search(program: &mut Vec<Instruction>, blocks: &[(u32, u32)]) {
    match blocks {
        [] => program.push(plain(LEAF, 0)),
        [(_, index)] => program.push(plain(LEAF, *index)),
        _ => {
            let (lower, upper) = blocks.split_at(blocks.len() / 2);
            let (branch, is_near) = (program.len(), lower.len() <= NEAR_BLOCKS);
            program.push(Instruction { code: JUMP_IF_AT_LEAST, jump_true: 0, jump_false: 0, value: upper[0].0 });
            if !is_near {
                program[branch].jump_false = 1;
                program.push(plain(JUMP, 0));
            }
            let start = program.len();
            search(program, lower);
            let length = program.len() - start;
            if is_near {
                program[branch].jump_true = length as u8;
            } else {
                program[branch + 1].value = length as u32;
            }
            search(program, upper);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Runs a program like the kernel.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut counter, mut accumulator) = (0, 0u32);
        loop {
            let instruction = program[counter];
            counter += 1;
            let mut branch = |taken: bool| {
                counter += usize::from(if taken { instruction.jump_true } else { instruction.jump_false });
            };
            match instruction.code {
                LOAD_WORD => {
                    let offset = instruction.value as usize;
                    accumulator = u32::from_be_bytes(packet[offset..offset + 4].try_into().unwrap());
                }
                LOAD_HALF => {
                    let offset = instruction.value as usize;
                    accumulator = u16::from_be_bytes(packet[offset..offset + 2].try_into().unwrap()).into();
                }
                SHIFT_RIGHT => accumulator >>= instruction.value,
                AND => accumulator &= instruction.value,
                JUMP => counter += instruction.value as usize,
                JUMP_IF_AT_LEAST => branch(accumulator >= instruction.value),
                JUMP_IF_EQUAL => branch(accumulator == instruction.value),
                RETURN => return instruction.value,
                RETURN_ACCUMULATOR => return accumulator,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn packet_for(qpn: u32) -> [u8; 64] {
        let mut packet = [0xa5; 64];
        packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        packet
    }

    /// Returns the program of members without listeners.
    fn of_blocks(members: &[&[u16]]) -> Vec<Instruction> {
        let members: Vec<Steered<'_>> = members.iter().map(|blocks| Steered { blocks, listeners: &[] }).collect();
        program(&members)
    }

    #[test]
    fn packets_go_to_the_owner_of_their_block() {
        let program = of_blocks(&[&[0x111], &[0x222, 0x333], &[0x444]]);
        for (qpn, index) in [(0x11_1005, 0), (0x22_2000, 1), (0x33_3fff, 1), (0x44_4001, 2)] {
            assert_eq!(run(&program, &packet_for(qpn)), index, "{qpn:#x}");
        }
        for qpn in [0x55_5123, 0x00_1000, 1, 0xff_ffff] {
            assert!(run(&program, &packet_for(qpn)) < 3, "{qpn:#x}");
        }
    }

    /// Returns the size that the kernel counts: its own instructions have eight bytes, a return is two of them, reading
    /// the packet several, and a program has a description.
    fn kernel_bytes(program: &[Instruction]) -> usize {
        let length = |instruction: &Instruction| match instruction.code {
            RETURN | RETURN_ACCUMULATOR => 2,
            LOAD_WORD | LOAD_HALF => 16,
            _ if instruction.jump_true > 0 && instruction.jump_false > 0 => 2,
            _ => 1,
        };
        256 + 8 * program.iter().map(length).sum::<usize>()
    }

    /// Returns listeners of a member, the first ones earlier.
    fn listeners_of(member: u32, count: u32) -> Vec<MemberListener> {
        let listener = |index| MemberListener { service: 0x0106_0000 | member << 8 | index, number: index };
        (0..count).map(listener).collect()
    }

    #[test]
    fn program_of_a_full_group_fits_older_kernels() {
        // As many as processes lease: 15 each while less than an eighth of all blocks is in use, then 5.
        let counts = (0..128).map(|member| if member < 35 { 15 } else { 5 });
        let mut next = (1..4_095u16).step_by(4);
        let blocks: Vec<Vec<u16>> = counts.map(|count| next.by_ref().take(count).collect()).collect();
        let listeners: Vec<Vec<MemberListener>> = (0..128).map(|member| listeners_of(member, 16)).collect();
        let members: Vec<Steered<'_>> =
            blocks.iter().zip(&listeners).map(|(blocks, listeners)| Steered { blocks, listeners }).collect();
        let program = program(&members);
        assert!(kernel_bytes(&program) <= 20_480, "{} instructions", program.len());
        for (index, blocks) in blocks.iter().enumerate() {
            for block in blocks {
                assert_eq!(run(&program, &packet_for(u32::from(*block) << 12)), index as u32, "{block}");
            }
        }
    }

    #[test]
    fn messages_go_to_the_owner_of_the_receivers_id() {
        let program = of_blocks(&[&[0x111], &[0x222, 0x333], &[0x444]]);
        let message = |attribute: Attribute, offset: usize, id: u32| {
            let mut packet = packet_for(1);
            packet[36..38].copy_from_slice(&attribute.0.to_be_bytes());
            packet[offset..offset + 4].copy_from_slice(&id.to_be_bytes());
            packet
        };
        for (id, index) in [(0x1110_0000, 0), (0x222f_ffff, 1), (0x3331_2345, 1), (0x4440_0001, 2)] {
            assert_eq!(run(&program, &message(Attribute::CONNECT_REPLY, 48, id)), index, "{id:#x}");
            assert_eq!(run(&program, &message(Attribute::DISCONNECT_REQUEST, 48, id)), index, "{id:#x}");
            assert_eq!(run(&program, &message(Attribute::SERVICE_ID_REPLY, 44, id)), index, "{id:#x}");
        }
    }

    #[test]
    fn the_discovery_goes_to_the_owner_of_the_receiver() {
        let program = of_blocks(&[&[0x111], &[0x222, 0x333], &[0x444]]);
        for (receiver, index) in [(0x11_1000_u32, 0), (0x22_2fff, 1), (0x33_3123, 1), (0xa544_4001, 2)] {
            let mut packet = packet_for(1);
            packet[36..38].copy_from_slice(&Attribute::DISCOVERY.0.to_be_bytes());
            packet[60..64].copy_from_slice(&receiver.to_be_bytes());
            assert_eq!(run(&program, &packet), index, "{receiver:#x}");
        }
    }

    #[test]
    fn requests_go_to_the_latest_listener() {
        let at = |service, number| MemberListener { service, number };
        let (first, second) = ([at(0x0106_1d2f, 1), at(0x0111_1d2f, 4)], [at(0x0106_1d30, 2), at(0x0106_1d2f, 3)]);
        let members = [(&[0x111][..], &first), (&[0x222], &second)];
        let program = program(&members.map(|(blocks, listeners)| Steered { blocks, listeners }));
        for attribute in [Attribute::CONNECT_REQUEST, Attribute::SERVICE_ID_REQUEST] {
            for (service, index) in [(0x0106_1d2f_u32, 1), (0x0111_1d2f, 0), (0x0106_1d30, 1)] {
                let mut packet = packet_for(1);
                packet[36..38].copy_from_slice(&attribute.0.to_be_bytes());
                packet[56..60].copy_from_slice(&service.to_be_bytes());
                assert_eq!(run(&program, &packet), index, "{attribute:?} {service:#x}");
            }
        }
    }

    #[test]
    fn group_of_one_takes_everything() {
        let program = of_blocks(&[&[0x111]]);
        assert_eq!(run(&program, &packet_for(0x77_7777)), 0);
        assert_eq!(run(&program, &packet_for(1)), 0);
    }

    #[test]
    fn probes_go_to_the_socket_whose_index_they_carry() {
        let program = of_blocks(&[&[0x111], &[0x222]]);
        for index in [0, 1, 77, 0x7ff] {
            let destination = probe_destination(index);
            assert_eq!(run(&program, &packet_for(destination)), index.into());
            assert_eq!(probed_index(destination), Some(index));
        }
        assert_eq!([probed_index(1), probed_index(0x1000), probed_index(0x22_2800)], [None; 3]);
    }

    #[test]
    fn program_stays_within_the_kernels_limit() {
        let blocks: Vec<u16> = (1..0xfff).collect();
        let listeners: Vec<Vec<MemberListener>> = (0..128).map(|member| listeners_of(member, 16)).collect();
        let mut members: Vec<Steered<'_>> =
            listeners.iter().map(|listeners| Steered { blocks: &[], listeners }).collect();
        members[1].blocks = &blocks;
        let program = program(&members);
        assert!(program.len() <= MAX_INSTRUCTIONS, "{}", program.len());
        for block in 1..=MAX_BLOCKS as u32 {
            assert_eq!(run(&program, &packet_for(block << 12)), 1, "{block}");
        }
    }
}
