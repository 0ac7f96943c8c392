//! Memory that moves into a request and comes back as the same type.

use crate::owned::{Buffer, FileBuffer, RequestBuffer};

/// Memory that moves into a request and comes back as the same type: [`Buffer`], [`FileBuffer`], or [`RequestBuffer`],
/// which is either of them or none.
pub trait IntoRequestBuffer: Into<RequestBuffer> + sealed::Sealed {
    #[doc(hidden)]
    fn from_request_buffer(buffer: RequestBuffer) -> Self;
}

impl IntoRequestBuffer for Buffer {
    fn from_request_buffer(buffer: RequestBuffer) -> Self {
        buffer.into_buffer().expect("a buffer went in, so a buffer comes back")
    }
}

impl IntoRequestBuffer for FileBuffer {
    fn from_request_buffer(buffer: RequestBuffer) -> Self {
        buffer.into_file().expect("a file went in, so a file comes back")
    }
}

impl IntoRequestBuffer for RequestBuffer {
    fn from_request_buffer(buffer: RequestBuffer) -> Self {
        buffer
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Buffer {}
    impl Sealed for super::FileBuffer {}
    impl Sealed for super::RequestBuffer {}
}
