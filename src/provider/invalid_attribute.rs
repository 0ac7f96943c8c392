//! The attributes that a verb refused, as data for programs.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use crate::memory::RegisterError;

/// An attribute or argument that a verb refused; see [`Error::attributes`](super::Error::attributes).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidAttribute {
    name: Cow<'static, str>,
    fault: AttributeFault,
}

/// The reason why a verb refused an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttributeFault {
    /// It is not given, but the verb requires it.
    Missing,
    /// It is given, but the verb does not accept it here.
    NotAllowed,
    /// Its value is out of range. Lengths are in bytes, `cq_period` is in microseconds, times of queue pairs are the
    /// standard's codes.
    OutOfRange {
        /// The value given.
        given: u64,
        /// The values allowed.
        allowed: RangeInclusive<u64>,
    },
    /// Its value, or the object that it refers to, is unsuitable. The error's message states why.
    Unsuitable,
}

impl InvalidAttribute {
    /// Describes the fault of the attribute with this name; for providers.
    pub fn new(name: impl Into<Cow<'static, str>>, fault: AttributeFault) -> Self {
        Self { name: name.into(), fault }
    }

    /// Returns its name: that of the field, argument or setter. A field of the address vector in `ah_attr` is named
    /// `ah_attr.` followed by its own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what is wrong with it.
    pub fn fault(&self) -> &AttributeFault {
        &self.fault
    }

    /// Returns the attribute that caused a registration to be refused, if any.
    pub(in crate::provider) fn of_registration(error: &RegisterError) -> Option<Self> {
        let (name, fault) = match error {
            RegisterError::UnsupportedAccess { .. }
            | RegisterError::MissingLocalWrite { .. }
            | RegisterError::NotWritable { .. } => ("access", AttributeFault::Unsuitable),
            RegisterError::Empty => ("length", AttributeFault::OutOfRange { given: 0, allowed: 1..=u64::MAX }),
            RegisterError::AddressOverflow { .. } => ("iova", AttributeFault::Unsuitable),
            RegisterError::NotMapped { .. } => ("addr", AttributeFault::Unsuitable),
            _ => return None,
        };
        Some(Self::new(name, fault))
    }
}
