//! Contents of messages that are not numbers: private data, additional information, the options of a vendor.

use std::fmt;

use super::Mad;
use super::field::{At, Field};
use super::numbers::VendorId;

/// Data of the applications in a message, always at its full length of `N` bytes: the wire has no length for it, so
/// a receiver cannot tell trailing zeros from padding.
///
/// `Debug` does not show the bytes, which may be secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Size in bytes.
    pub const BYTES: usize = N;

    /// Creates the data of these bytes and zeros behind them. Returns `None` for more than `N` bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        padded(bytes).map(Self)
    }

    /// Returns all bytes.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
}

/// Zeros.
impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({N} bytes)")
    }
}

impl<const N: usize> Field<At> for PrivateData<N> {
    fn read(mad: &Mad, position: At) -> Self {
        Self(Field::read(mad, position))
    }

    fn write(&self, mad: &mut Mad, position: At) {
        self.0.write(mad, position);
    }
}

/// Returns the bytes with zeros behind them, or `None` if there are more than `N`.
fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

/// Details of a refusal, at most 72 bytes; the reason determines their format. The wire has their length in a field of
/// `LENGTH_BITS` bits, 7 or 8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AdditionalInformation<const LENGTH_BITS: u32> {
    /// At most `LENGTH_BITS` bits: that of a received message may exceed the capacity.
    length: u8,
    bytes: [u8; ADDITIONAL_INFORMATION_BYTES],
}

/// Capacity of [`AdditionalInformation`].
pub const ADDITIONAL_INFORMATION_BYTES: usize = 72;

impl<const LENGTH_BITS: u32> AdditionalInformation<LENGTH_BITS> {
    /// Creates the information of these bytes. Returns `None` for more than 72.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        Some(Self { length: bytes.len() as u8, bytes: padded(bytes)? })
    }

    /// Returns the length that the message states, also if it exceeds 72.
    pub const fn stated_length(&self) -> u8 {
        self.length
    }

    /// Returns the bytes, as many as the message states and has.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(ADDITIONAL_INFORMATION_BYTES)]
    }

    /// Returns all 72 bytes, also those behind the stated length.
    pub const fn whole(&self) -> &[u8; ADDITIONAL_INFORMATION_BYTES] {
        &self.bytes
    }
}

/// None.
impl<const LENGTH_BITS: u32> Default for AdditionalInformation<LENGTH_BITS> {
    fn default() -> Self {
        Self { length: 0, bytes: [0; ADDITIONAL_INFORMATION_BYTES] }
    }
}

impl<const LENGTH_BITS: u32> fmt::Debug for AdditionalInformation<LENGTH_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdditionalInformation({} bytes: {:02x?})", self.length, self.as_bytes())
    }
}

/// The length, which begins with the most significant bit of a byte, and the bytes.
impl<const LENGTH_BITS: u32> Field<(usize, At)> for AdditionalInformation<LENGTH_BITS> {
    fn read(mad: &Mad, (length, bytes): (usize, At)) -> Self {
        Self { length: mad.data[length] >> (8 - LENGTH_BITS), bytes: Field::read(mad, bytes) }
    }

    fn write(&self, mad: &mut Mad, (length, bytes): (usize, At)) {
        mad.data[length] |= self.length << (8 - LENGTH_BITS);
        self.bytes.write(mad, bytes);
    }
}

/// Options of a vendor that both ends agree on (enhanced connection establishment, ECE; `ibv_ece`). A reply to a
/// request without a vendor must not have one: librdmacm refuses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VendorOptions {
    /// The vendor that defines the options; 0: none.
    pub vendor: VendorId,
    /// The options, in the attribute modifier.
    pub options: u32,
}

/// The bytes of the vendor, most significant first: some messages scatter them over bytes that were reserved.
impl Field<[usize; 3]> for VendorOptions {
    fn read(mad: &Mad, [high, middle, low]: [usize; 3]) -> Self {
        let vendor = u32::from_be_bytes([0, mad.data[high], mad.data[middle], mad.data[low]]);
        Self { vendor: VendorId::new(vendor), options: mad.modifier }
    }

    fn write(&self, mad: &mut Mad, positions: [usize; 3]) {
        let [_, vendor @ ..] = self.vendor.value().to_be_bytes();
        for (position, byte) in positions.into_iter().zip(vendor) {
            mad.data[position] = byte;
        }
        mad.modifier = self.options;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_keeps_its_full_length() {
        let data = PrivateData::<92>::new(b"hello").unwrap();
        assert_eq!(data.as_bytes()[..6], *b"hello\0");
        assert_eq!(data.as_bytes().len(), PrivateData::<92>::BYTES);
        assert!(PrivateData::<92>::new(&[1; 92]).is_some_and(|data| data.as_bytes() == &[1; 92]));
        assert_eq!(PrivateData::<92>::new(&[1; 93]), None);
        assert_eq!(PrivateData::<4>::new(&[]), Some(PrivateData::default()));
        assert_eq!(format!("{data:?}"), "PrivateData(92 bytes)");
    }

    #[test]
    fn additional_information_is_bounded() {
        let information = AdditionalInformation::<7>::new(&[3; 16]).unwrap();
        assert_eq!((information.as_bytes(), information.stated_length()), (&[3; 16][..], 16));
        assert!(AdditionalInformation::<7>::new(&[3; 72]).is_some_and(|whole| whole.as_bytes() == [3; 72]));
        assert_eq!(AdditionalInformation::<7>::new(&[3; 73]), None);
        assert_eq!(AdditionalInformation::<8>::new(&[3; 257]), None);
        assert!(AdditionalInformation::<8>::default().as_bytes().is_empty());
    }
}
