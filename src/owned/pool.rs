//! A pool of registered buffers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::Buffer;
use super::exclusive::{Exclusive, check_device};
use crate::verbs::{Error, ErrorKind, ProtectionDomain, Result};

/// Smallest size class; a cache line.
const MIN_CLASS_BYTES: usize = 64;
/// Size classes: powers of two up to the longest message.
const CLASSES: usize = 26;
/// Small buffers are registered this many bytes at a time.
const SLAB_BYTES: usize = 64 * 1024;

/// A pool of registered buffers, whose sizes are powers of two from 64 bytes to 2 GiB.
///
/// Memory is registered on demand (small buffers many at a time) and stays registered; a dropped buffer returns to the
/// pool. The pool never registers more than its limit: when that is reached, it first releases idle buffers of other
/// sizes, then refuses. Clones refer to the same pool.
///
/// ```
/// # use rdma_verbs::verbs;
/// # let pd = verbs::open("soft:127.0.1.98")?.alloc_pd()?;
/// use rdma_verbs::owned::BufferPool;
///
/// let pool = BufferPool::new(&pd, 128 * 1024)?;
/// let buffer = pool.take(1000)?;
/// assert_eq!((buffer.capacity(), pool.stats().outstanding), (1024, 1));
/// drop(buffer);
/// assert_eq!(pool.stats().outstanding, 0);
///
/// let error = pool.take(1 << 20).unwrap_err();
/// assert_eq!(error.kind(), verbs::ErrorKind::ResourceLimit);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Pool>,
}

/// Statistics of a [`BufferPool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Number of registered bytes.
    pub registered_bytes: usize,
    /// Number of idle buffers.
    pub idle: usize,
    /// Number of buffers taken and not yet returned.
    pub outstanding: usize,
    /// Number of buffers taken since the pool was created.
    pub taken: u64,
    /// Number of buffers returned since the pool was created.
    pub returned: u64,
}

/// State shared by a pool and its buffers.
pub(super) struct Pool {
    domain: ProtectionDomain,
    max_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Idle buffers by size class. Each vector has room for all buffers of its class.
    idle: [Vec<Exclusive>; CLASSES],
    /// Number of existing buffers by size class.
    existing: [usize; CLASSES],
    registered: usize,
    taken: u64,
    returned: u64,
}

impl BufferPool {
    /// Creates a pool that registers up to `max_bytes` in `domain`. Nothing is registered yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device belongs to a provider outside this crate.
    pub fn new(domain: &ProtectionDomain, max_bytes: usize) -> Result<Self> {
        check_device(domain)?;
        let shared = Pool { domain: domain.clone(), max_bytes, state: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Takes an empty buffer with room for `len` bytes or more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `len` exceeds the longest message; [`ErrorKind::ResourceLimit`] if the buffer
    /// would need more memory than the pool may register; otherwise, as for [`ProtectionDomain::alloc_mr`].
    pub fn take(&self, len: usize) -> Result<Buffer> {
        self.shared.check_process("take")?;
        let class = class_of(len)?;
        loop {
            if let Some(bytes) = self.shared.take_idle(class) {
                return Ok(Buffer::pooled(bytes, Arc::clone(&self.shared)));
            }
            self.shared.grow(class)?;
        }
    }

    /// Takes a buffer and fills it with a copy of `bytes`.
    ///
    /// # Errors
    /// As for [`BufferPool::take`].
    ///
    /// ```
    /// # use rdma_verbs::{owned::BufferPool, verbs};
    /// # let pd = verbs::open("soft:127.0.1.99")?.alloc_pd()?;
    /// let buffer = BufferPool::new(&pd, 1 << 20)?.copy_from(b"message")?;
    /// assert_eq!(*buffer, *b"message");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn copy_from(&self, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.take(bytes.len())?;
        buffer.extend_from_slice(bytes);
        Ok(buffer)
    }

    /// Returns the pool's statistics; all zero in a process that inherited it.
    pub fn stats(&self) -> PoolStats {
        if self.shared.check_process("stats").is_err() {
            return PoolStats::default();
        }
        let state = self.shared.state();
        PoolStats {
            registered_bytes: state.registered,
            idle: state.idle.iter().map(Vec::len).sum(),
            outstanding: (state.taken - state.returned) as usize,
            taken: state.taken,
            returned: state.returned,
        }
    }

    /// Returns the protection domain that its buffers are registered in.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("BufferPool");
        debug.field("max_bytes", &self.shared.max_bytes).field("stats", &self.stats()).finish()
    }
}

fn class_of(len: usize) -> Result<usize> {
    let largest = MIN_CLASS_BYTES << (CLASSES - 1);
    if len > largest {
        let message = format!("{len} bytes requested; a message has at most {largest}");
        return Err(Error::new("take", ErrorKind::InvalidArgument, message));
    }
    Ok(class_of_exact(len.max(MIN_CLASS_BYTES).next_power_of_two()))
}

fn class_of_exact(bytes: usize) -> usize {
    (bytes / MIN_CLASS_BYTES).trailing_zeros() as usize
}

impl Pool {
    /// Must be called before locking: in a forked child, the lock may be held by a thread that exists only in the
    /// parent.
    fn check_process(&self, verb: &'static str) -> Result<()> {
        self.domain.context().check_process(verb)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self, class: usize) -> Option<Exclusive> {
        let mut state = self.state();
        let bytes = state.idle[class].pop()?;
        state.taken += 1;
        Some(bytes)
    }

    /// Takes a buffer back. Allocates nothing: there is room for all of its class.
    fn put_back(&self, bytes: Exclusive) {
        if self.check_process("put_back").is_err() {
            return;
        }
        let mut state = self.state();
        state.returned += 1;
        state.idle[class_of_exact(bytes.len())].push(bytes);
    }

    /// Registers more buffers of a class, without the lock: registration waits for the engine.
    fn grow(&self, class: usize) -> Result<()> {
        let size = MIN_CLASS_BYTES << class;
        let (count, released) = self.reserve(class, size)?;
        drop(released);
        let registered = Exclusive::pieces(&self.domain, size, count);
        let mut state = self.state();
        match registered {
            Ok(pieces) => {
                state.existing[class] += count;
                let room = state.existing[class] - state.idle[class].len();
                state.idle[class].reserve(room);
                state.idle[class].extend(pieces);
                Ok(())
            }
            Err(error) => {
                state.registered -= size * count;
                Err(error)
            }
        }
    }

    /// Counts the bytes for more buffers of a class as registered. Returns the number of buffers, and the memory
    /// released for them.
    fn reserve(&self, class: usize, size: usize) -> Result<(usize, Vec<Exclusive>)> {
        let mut state = self.state();
        let mut released = Vec::new();
        if size > self.max_bytes - state.registered {
            state.release_idle(class, &mut released);
        }
        let room = self.max_bytes - state.registered;
        if size > room {
            let (limit, used) = (self.max_bytes, state.registered);
            drop(state);
            // The lock must not be held while the released memory is deregistered.
            drop(released);
            let message = format!(
                "a buffer of {size} bytes was requested; the pool may register {limit} bytes, {used} are registered \
                 and in use; drop buffers first, or make the pool larger"
            );
            return Err(Error::new("take", ErrorKind::ResourceLimit, message));
        }
        let count = (SLAB_BYTES / size).max(1).min(room / size);
        state.registered += size * count;
        Ok((count, released))
    }
}

impl State {
    /// Moves all regions without a buffer in use into `released`, except those of the class `keep`.
    fn release_idle(&mut self, keep: usize, released: &mut Vec<Exclusive>) {
        for class in (0..CLASSES).filter(|class| *class != keep) {
            let mut rest = std::mem::take(&mut self.idle[class]);
            let mut kept = Vec::with_capacity(self.existing[class]);
            while let Some(piece) = rest.pop() {
                let count = piece.pieces_of_region();
                let (mut region, others): (Vec<_>, _) = rest.into_iter().partition(|other| other.shares_region(&piece));
                rest = others;
                region.push(piece);
                if region.len() == count {
                    self.existing[class] -= count;
                    self.registered -= count * (MIN_CLASS_BYTES << class);
                    released.append(&mut region);
                } else {
                    kept.append(&mut region);
                }
            }
            self.idle[class] = kept;
        }
    }
}

/// Bytes of a pool's buffer, which return to the pool when they are dropped.
pub(super) struct PooledBytes {
    /// Present until dropped.
    bytes: Option<Exclusive>,
    pool: Arc<Pool>,
}

impl PooledBytes {
    pub(super) fn new(bytes: Exclusive, pool: Arc<Pool>) -> Self {
        Self { bytes: Some(bytes), pool }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &Exclusive {
        self.bytes.as_ref().expect("present until dropped")
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut Exclusive {
        self.bytes.as_mut().expect("present until dropped")
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.pool.put_back(bytes);
        }
    }
}
