//! Steering: which socket of an address a packet goes to.
//!
//! All sockets that this process binds to one address and port 4791 form a `SO_REUSEPORT` group. A classic BPF program
//! picks the socket by the block of the packet's destination queue pair. A group of one needs none.

use super::sys::Instruction;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Longest program that the kernel takes.
const MAX_INSTRUCTIONS: usize = 4_096;
/// The second word of the base transport header: a reserved byte, then the destination queue pair.
const DESTINATION_OFFSET: u32 = 4;

/// The program that sends packets for the blocks of `members[i]` to socket `i`, and all others to the first socket,
/// where they are counted. Blocks that do not fit into a program go there, too.
pub(super) fn program(members: &[&[u32]]) -> Vec<Instruction> {
    let plain = |code, value| Instruction { code, jump_true: 0, jump_false: 0, value };
    let mut program = vec![plain(LOAD_WORD, DESTINATION_OFFSET), plain(SHIFT_RIGHT, 12), plain(AND, 0xfff)];
    let targets = members.iter().enumerate().skip(1);
    for (index, block) in targets.flat_map(|(index, blocks)| blocks.iter().map(move |block| (index, *block))) {
        if program.len() + 3 > MAX_INSTRUCTIONS {
            break;
        }
        program.push(Instruction { code: JUMP_IF_EQUAL, jump_true: 0, jump_false: 1, value: block });
        program.push(plain(RETURN, index as u32));
    }
    program.push(plain(RETURN, 0));
    program
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
            match instruction.code {
                LOAD_WORD => {
                    let offset = instruction.value as usize;
                    accumulator = u32::from_be_bytes(packet[offset..offset + 4].try_into().unwrap());
                }
                SHIFT_RIGHT => accumulator >>= instruction.value,
                AND => accumulator &= instruction.value,
                JUMP_IF_EQUAL => {
                    let equal = accumulator == instruction.value;
                    place += usize::from(if equal { instruction.jump_true } else { instruction.jump_false });
                }
                RETURN => return instruction.value,
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
        assert_eq!(program.len(), 4);
        assert_eq!(run(&program, &packet_for(0x77_7777)), 0);
    }

    #[test]
    fn program_stays_within_the_kernels_limit() {
        let blocks: Vec<u32> = (1..4_000).collect();
        let program = program(&[&[0xfff], &blocks]);
        assert!(program.len() <= MAX_INSTRUCTIONS);
        assert_eq!(run(&program, &packet_for(0x00_1000)), 1);
    }
}
