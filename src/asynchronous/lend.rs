//! Memory that moves into a request and comes back as the same type.

use crate::owned::{Buffer, FileBuffer, Loan};

/// Memory that moves into a request and comes back as the same type: [`Buffer`], [`FileBuffer`], or [`Loan`], which may
/// be either.
pub trait Lend: Into<Loan> + sealed::Sealed {
    #[doc(hidden)]
    fn from_loan(loan: Loan) -> Self;
}

impl Lend for Buffer {
    fn from_loan(loan: Loan) -> Self {
        loan.into_buffer().expect("a buffer went in, so a buffer comes back")
    }
}

impl Lend for FileBuffer {
    fn from_loan(loan: Loan) -> Self {
        loan.into_file().expect("a file went in, so a file comes back")
    }
}

impl Lend for Loan {
    fn from_loan(loan: Loan) -> Self {
        loan
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Buffer {}
    impl Sealed for super::FileBuffer {}
    impl Sealed for super::Loan {}
}
