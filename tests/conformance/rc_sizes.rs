//! Message sizes at the boundaries of packets.

use rdma_verbs::verbs::{ConnectOptions, Mtu, SendRequest};

use super::bytes::{check, check_all, fill};
use super::end::{End, Shape};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/size/send_around_the_mtu", "IBTA, reliable service: packets of a message", send_around_the_mtu),
    Scenario::new("rc/size/write_around_the_mtu", "IBTA, reliable service: packets of a message", write_around_the_mtu),
    Scenario::new("rc/size/read_around_the_mtu", "IBTA, reliable service: packets of an answer", read_around_the_mtu),
    Scenario::new("rc/size/send_powers_of_two", "IBTA, reliable service: lengths and padding", send_powers_of_two),
    Scenario::new("rc/size/write_powers_of_two", "IBTA, reliable service: lengths and padding", write_powers_of_two),
    Scenario::new("rc/size/read_powers_of_two", "IBTA, reliable service: lengths and padding", read_powers_of_two),
    Scenario::new("rc/size/send_every_small_length", "IBTA, transport headers: pad count", send_small),
    Scenario::new("rc/size/write_every_small_length_and_offset", "IBTA, transport headers: pad count", write_small),
    Scenario::new("rc/size/send_many_packets", "IBTA, reliable service: FIRST, MIDDLE, LAST", many_packets_sent),
    Scenario::new("rc/size/read_many_packets", "IBTA, reliable service: FIRST, MIDDLE, LAST", many_packets_read),
];

/// Moves bytes from one end to the other by one operation.
type Move = fn(&End, &End, usize, u64);

fn send(left: &End, right: &End, len: usize, seed: u64) {
    fill(&left.region, 0, len, seed);
    right.receive(seed, 0..len);
    left.post(&[SendRequest::send(left.at(0..len)).wr_id(seed).signaled()]);
    right.received(seed, len as u32);
    left.sent(seed);
    check(&right.region, 0, len, seed);
}

fn write(left: &End, right: &End, len: usize, seed: u64) {
    fill(&left.region, 0, len, seed);
    left.post(&[SendRequest::write(left.at(0..len), right.far(0..len)).wr_id(seed).signaled()]);
    left.written(seed);
    check(&right.region, 0, len, seed);
}

/// Moves bytes from right to left, by a READ of the left one.
fn read(left: &End, right: &End, len: usize, seed: u64) {
    fill(&right.region, 0, len, seed);
    left.post(&[SendRequest::read(left.at(0..len), right.far(0..len)).wr_id(seed).signaled()]);
    left.read(seed, len as u32);
    check(&left.region, 0, len, seed);
}

fn around_the_mtu(world: &World, how: Move) {
    let active = world.device(0).query_port(1).unwrap().active_mtu;
    for mtu in Mtu::ALL.iter().copied().filter(|mtu| *mtu <= active) {
        let (left, right) = world.pair_of(&Shape::default(), &ConnectOptions::default().path_mtu(mtu));
        assert_eq!(left.qp.query().unwrap().attributes.path_mtu, Some(mtu));
        let bytes = mtu.bytes() as usize;
        for packets in [1, 2, 3, 8] {
            for len in packets * bytes - 1..=packets * bytes + 1 {
                how(&left, &right, len, len as u64);
            }
        }
    }
}

fn powers_of_two(world: &World, how: Move) {
    let shape = Shape { region_bytes: (1 << 20) + 1, ..Shape::default() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    for power in 0..=20 {
        for len in [(1 << power) - 1, 1 << power, (1 << power) + 1] {
            how(&left, &right, len, len as u64);
        }
    }
}

fn send_around_the_mtu(world: &World) {
    around_the_mtu(world, send);
}

fn write_around_the_mtu(world: &World) {
    around_the_mtu(world, write);
}

fn read_around_the_mtu(world: &World) {
    around_the_mtu(world, read);
}

fn send_powers_of_two(world: &World) {
    powers_of_two(world, send);
}

fn write_powers_of_two(world: &World) {
    powers_of_two(world, write);
}

fn read_powers_of_two(world: &World) {
    powers_of_two(world, read);
}

fn send_small(world: &World) {
    let (left, right) = world.pair();
    for len in 0..70 {
        right.region.write_at(0, &[0xcc; 80]).unwrap();
        send(&left, &right, len, 1000 + len as u64);
        check_all(&right.region, len, 80 - len, 0xcc);
    }
}

fn write_small(world: &World) {
    let (left, right) = world.pair();
    for offset in 0..8 {
        for len in 1..24 {
            right.region.write_at(0, &[0xcc; 48]).unwrap();
            let seed = (offset * 100 + len) as u64;
            fill(&left.region, 0, len, seed);
            left.post(&[SendRequest::write(left.at(0..len), right.far(offset..offset + len)).signaled()]);
            left.written(0);
            check_all(&right.region, 0, offset, 0xcc);
            check(&right.region, offset, len, seed);
            check_all(&right.region, offset + len, 48 - offset - len, 0xcc);
        }
    }
}

fn many_packets(world: &World, how: Move) {
    let shape = Shape { region_bytes: 1 << 20, ..Shape::default() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default().path_mtu(Mtu::Mtu256));
    how(&left, &right, 1_000_003, 1);
    how(&left, &right, 999_936, 2);
}

fn many_packets_sent(world: &World) {
    many_packets(world, send);
}

fn many_packets_read(world: &World) {
    many_packets(world, read);
}
