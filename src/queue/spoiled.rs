//! Completions as planted bugs would report them; without the feature `mutations` they stay as they are.
#![forbid(unsafe_code)]

use crate::mutation::{Mutation, planted};
use crate::types::{Cause, CompletionFlags, CompletionOpcode, CompletionStatus, Qpn, RawCompletion};

/// The completion, with the mistake that is switched on.
#[inline(always)]
pub(super) fn spoiled(mut completion: RawCompletion) -> RawCompletion {
    let is_receive = completion.opcode as u32 >= CompletionOpcode::Receive as u32;
    let is_atomic = matches!(completion.opcode, CompletionOpcode::CompareAndSwap | CompletionOpcode::FetchAndAdd);
    if (is_atomic && planted(Mutation::AtomicLengthNotTold)) || (is_receive && planted(Mutation::ReceiveLengthNotTold))
    {
        completion.byte_len = 0;
    }
    completion.opcode = match completion.opcode {
        CompletionOpcode::RdmaWrite if planted(Mutation::WriteCompletesAsSend) => CompletionOpcode::Send,
        CompletionOpcode::CompareAndSwap if planted(Mutation::SwapCompletesAsAdd) => CompletionOpcode::FetchAndAdd,
        CompletionOpcode::ReceiveRdmaWithImmediate if planted(Mutation::NoticeCompletesAsReceive) => {
            CompletionOpcode::Receive
        }
        opcode => opcode,
    };
    if planted(Mutation::ImmediateMarkLost) {
        completion.flags.remove(CompletionFlags::WITH_IMMEDIATE);
    }
    if planted(Mutation::ImmediateMarkAlways) && is_receive && completion.status.is_success() {
        completion.flags.insert(CompletionFlags::WITH_IMMEDIATE);
    }
    if planted(Mutation::CompletionOfNoQueuePair) {
        completion.qpn = Qpn::default();
    }
    if planted(Mutation::CauseNotTold) {
        completion.cause = Cause::None;
    }
    completion.status = match completion.status {
        CompletionStatus::WorkRequestFlushedError if planted(Mutation::FlushedAsFailed) => {
            CompletionStatus::GeneralError
        }
        CompletionStatus::LocalLengthError if planted(Mutation::TooLongAsProtectionError) => {
            CompletionStatus::LocalProtectionError
        }
        CompletionStatus::RetryExceededError if planted(Mutation::SilenceAsReceiverNotReady) => {
            CompletionStatus::ReceiverNotReadyRetryExceededError
        }
        status => status,
    };
    completion
}
