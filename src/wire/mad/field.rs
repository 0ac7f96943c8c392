//! Fields of a datagram: their widths, their positions, and how they are read and written.
//!
//! Each message lists its fields once, with [`layout`]; reading and writing use the same list.

use std::ops::Range;

use crate::types::{Gid, Psn, Qkey, Qpn};

use super::Mad;

/// A value of a fixed number of consecutive bits.
pub(super) trait Bits: Copy {
    /// Number of bits, 1 to 128.
    const WIDTH: u32;

    /// Returns the value of the low [`WIDTH`](Self::WIDTH) bits; the others are 0.
    fn from_bits(bits: u128) -> Self;

    /// Returns the bits of the value. A writer drops those above [`WIDTH`](Self::WIDTH).
    fn to_bits(self) -> u128;
}

macro_rules! bits {
    ($($kind:ty: $width:literal, |$bits:ident| $from:expr, |$value:ident| $to:expr;)*) => { $(
        impl Bits for $kind {
            const WIDTH: u32 = $width;

            fn from_bits($bits: u128) -> Self {
                $from
            }

            fn to_bits(self) -> u128 {
                let $value = self;
                $to
            }
        }
    )* };
}

bits! {
    bool: 1, |bits| bits != 0, |value| value.into();
    u8: 8, |bits| bits as u8, |value| value.into();
    u16: 16, |bits| bits as u16, |value| value.into();
    u32: 32, |bits| bits as u32, |value| value.into();
    u64: 64, |bits| bits as u64, |value| value.into();
    Qpn: 24, |bits| Qpn::new(bits as u32), |number| number.value().into();
    Psn: 24, |bits| Psn::new(bits as u32), |number| number.value().into();
    Qkey: 32, |bits| Qkey(bits as u32), |key| key.0.into();
    Gid: 128, |bits| Gid::from_bytes(bits.to_be_bytes()), |gid| u128::from_be_bytes(gid.to_bytes());
}

/// Position of a field: the byte and the bit of its most significant bit.
#[derive(Clone, Copy)]
pub(super) struct At {
    byte: usize,
    /// 7 is the most significant bit of the byte.
    bit: u32,
}

/// Returns the position of a field that begins with the most significant bit of a byte.
pub(super) const fn at(byte: usize) -> At {
    At { byte, bit: 7 }
}

impl At {
    /// Returns the position of a field that begins with this bit of the byte; 7 is the most significant one.
    pub(super) const fn bit(self, bit: u32) -> Self {
        Self { bit, ..self }
    }

    /// Returns the position this number of bytes later.
    pub(super) const fn after(self, bytes: usize) -> Self {
        Self { byte: self.byte + bytes, ..self }
    }

    /// Reads a value.
    pub(super) fn get<T: Bits>(self, bytes: &[u8]) -> T {
        let (range, behind) = self.span(T::WIDTH);
        let whole = bytes[range].iter().fold(0, |value, byte| value << 8 | u128::from(*byte));
        T::from_bits(whole >> behind & mask(T::WIDTH))
    }

    /// Writes a value to bits that are 0.
    pub(super) fn put<T: Bits>(self, bytes: &mut [u8], value: T) {
        let (range, behind) = self.span(T::WIDTH);
        let whole = (value.to_bits() & mask(T::WIDTH)) << behind;
        for (byte, part) in bytes[range].iter_mut().rev().zip(whole.to_le_bytes()) {
            *byte |= part;
        }
    }

    /// Returns the bytes that contain a field of this width, and the number of bits behind the field in the last one.
    fn span(self, width: u32) -> (Range<usize>, u32) {
        let end = 7 - self.bit + width;
        let bytes = end.div_ceil(8);
        (self.byte..self.byte + bytes as usize, 8 * bytes - end)
    }
}

/// Returns a number with this many low bits set, 1 to 128.
const fn mask(width: u32) -> u128 {
    u128::MAX >> (128 - width)
}

/// A value that a datagram contains at a `Position`.
pub(super) trait Field<Position> {
    /// Reads it.
    fn read(mad: &Mad, position: Position) -> Self;

    /// Writes it to a datagram that has zeros there.
    fn write(&self, mad: &mut Mad, position: Position);
}

impl<T: Bits> Field<At> for T {
    fn read(mad: &Mad, position: At) -> Self {
        position.get(&mad.data)
    }

    fn write(&self, mad: &mut Mad, position: At) {
        position.put(&mut mad.data, *self);
    }
}

impl<const N: usize> Field<At> for [u8; N] {
    fn read(mad: &Mad, position: At) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&mad.data[position.byte..position.byte + N]);
        bytes
    }

    fn write(&self, mad: &mut Mad, position: At) {
        mad.data[position.byte..position.byte + N].copy_from_slice(self);
    }
}

/// Position of a message: all data of its datagram.
#[derive(Clone, Copy)]
pub(super) struct WholeData;

impl WholeData {
    /// Returns the position in the datagram of a field of the message.
    pub(super) const fn field<P: Copy>(self, position: P) -> P {
        position
    }
}

/// Lists the fields of a type with their positions in the type. The list must be complete.
macro_rules! layout {
    ($name:ident in $place:ident { $($field:ident: $position:expr,)* }) => {
        impl $crate::wire::mad::field::Field<$place> for $name {
            fn read(mad: &$crate::wire::mad::Mad, place: $place) -> Self {
                Self { $($field: $crate::wire::mad::field::Field::read(mad, place.field($position)),)* }
            }

            fn write(&self, mad: &mut $crate::wire::mad::Mad, place: $place) {
                $($crate::wire::mad::field::Field::write(&self.$field, mad, place.field($position));)*
            }
        }
    };
}

pub(super) use {bits, layout};
