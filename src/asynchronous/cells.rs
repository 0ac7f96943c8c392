//! Cells in which futures wait: one for each request that a queue can hold, created with the queue pair.
//!
//! A cell is claimed before its request is posted, and is free again when the request is finished *and* its future has
//! taken the result or was dropped. There are therefore never more requests in flight than cells. A buffer whose future
//! is gone is dropped when its request is finished: it returns to its pool.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Semaphore;

use crate::owned::Finished;

enum Cell {
    Free,
    /// The request is posted or about to be; its future waits.
    Waiting(Option<Waker>),
    /// The request is posted; its future is gone.
    Abandoned,
    Finished(Finished),
}

impl Cell {
    /// Returns whether the request is not finished; then the task is woken when it is.
    fn waits(&mut self, context: &mut Context<'_>) -> bool {
        match self {
            Cell::Finished(_) => return false,
            Cell::Waiting(Some(waker)) => waker.clone_from(context.waker()),
            _ => *self = Cell::Waiting(Some(context.waker().clone())),
        }
        true
    }
}

/// The cells of one queue.
pub(super) struct Cells {
    state: Mutex<State>,
    /// One permit for each free cell; waiting futures get them in order.
    room: Semaphore,
    abandoned: AtomicU64,
}

struct State {
    cells: Vec<Cell>,
    free: Vec<u32>,
}

impl Cells {
    pub(super) fn new(count: u32) -> Arc<Self> {
        let state = State { cells: (0..count).map(|_| Cell::Free).collect(), free: (0..count).rev().collect() };
        Arc::new(Self { state: Mutex::new(state), room: Semaphore::new(count as usize), abandoned: AtomicU64::new(0) })
    }

    /// Waits for a free cell and claims it. Dropping the ticket before anything was posted frees the cell.
    pub(super) async fn claim(self: &Arc<Self>) -> Ticket {
        let permit = self.room.acquire().await.expect("it is never closed");
        permit.forget();
        self.claim_free()
    }

    /// Claims a cell if one is free.
    pub(super) fn try_claim(self: &Arc<Self>) -> Option<Ticket> {
        self.room.try_acquire().ok()?.forget();
        Some(self.claim_free())
    }

    fn claim_free(self: &Arc<Self>) -> Ticket {
        let mut state = self.state();
        let index = state.free.pop().expect("a permit stands for a free cell");
        state.cells[index as usize] = Cell::Waiting(None);
        Ticket { cells: Arc::clone(self), index, progress: Progress::Claimed }
    }

    /// Returns the position of the first of these tickets, all of this queue, whose request is finished. Requests
    /// finish in order under the lock that is held meanwhile: none is found finished before its predecessor.
    pub(super) fn poll_first<'t>(
        &self,
        mut tickets: impl Iterator<Item = &'t Ticket>,
        context: &mut Context<'_>,
    ) -> Poll<usize> {
        let mut state = self.state();
        let found = tickets.position(|ticket| !state.cells[ticket.index as usize].waits(context));
        found.map_or(Poll::Pending, Poll::Ready)
    }

    /// Hands a finished request to its future, or drops it if there is none.
    pub(super) fn finish(&self, index: u32, finished: Finished) {
        let mut state = self.state();
        let Some(cell) = state.cells.get_mut(index as usize) else { return };
        match std::mem::replace(cell, Cell::Finished(finished)) {
            Cell::Waiting(waker) => {
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Cell::Abandoned => {
                let unwanted = self.free(state, index);
                self.abandoned.fetch_add(1, Ordering::Relaxed);
                drop(unwanted);
            }
            // Only requests that were posted finish, each once.
            Cell::Free | Cell::Finished(_) => {}
        }
    }

    /// Returns the number of requests that were finished after their futures were dropped.
    pub(super) fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Frees a cell and returns its contents, which must be dropped without the lock.
    fn free(&self, mut state: MutexGuard<'_, State>, index: u32) -> Cell {
        let old = std::mem::replace(&mut state.cells[index as usize], Cell::Free);
        state.free.push(index);
        drop(state);
        self.room.add_permits(1);
        old
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Claimed,
    Posted,
    Taken,
}

/// A claimed cell, and the future of its request.
pub(super) struct Ticket {
    cells: Arc<Cells>,
    index: u32,
    progress: Progress,
}

impl Ticket {
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Marks the request as posted: from now on, the cell is freed only when the request is finished.
    pub(super) fn posted(mut self) -> Self {
        self.progress = Progress::Posted;
        self
    }
}

impl Future for Ticket {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        let this = &mut *self;
        let mut state = this.cells.state();
        if state.cells[this.index as usize].waits(context) {
            return Poll::Pending;
        }
        let Cell::Finished(finished) = this.cells.free(state, this.index) else { unreachable!("seen just now") };
        this.progress = Progress::Taken;
        Poll::Ready(finished)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.cells.state();
        match (self.progress, &mut state.cells[self.index as usize]) {
            (Progress::Taken, _) => {}
            (Progress::Posted, cell @ Cell::Waiting(_)) => {
                let waker = std::mem::replace(cell, Cell::Abandoned);
                drop(state);
                drop(waker);
            }
            (Progress::Posted, _) => {
                let unwanted = self.cells.free(state, self.index);
                self.cells.abandoned.fetch_add(1, Ordering::Relaxed);
                drop(unwanted);
            }
            (Progress::Claimed, _) => drop(self.cells.free(state, self.index)),
        }
    }
}
