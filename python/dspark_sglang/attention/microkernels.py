"""The four inner loops of CPU attention as vector instructions, emitted through numba (see `kernel`).

LLVM does not find these vectors in scalar loops of arrays that may overlap, so they are written down: every operation
is on 16 fp32 lanes, which is a register with AVX-512 and two or four elsewhere. A lane is a query row, except in
`accumulate`, where it is a dimension of the head.

Shape legend: D head dim, L KV tokens; LANES (query rows) and KEYS are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dspark_sglang.attention.layout import LANES

# KV tokens that are scored together: as many sums in flight as hide the latency of a fused multiply-add.
KEYS = 8
# Query rows, and vectors of a value row, whose sums `accumulate` holds in registers.
ROWS = 4
VECTORS = 2

_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VF32, _VI16, _VI32 = (ir.VectorType(one, LANES) for one in (_F32, _I16, _I32))
_LOG2_E = 1.4426950408889634
# 2**f on [-0.5, 0.5], highest power first: the series of exp(f * ln 2), off by less than 2e-8.
_EXP2: tuple[float, ...] = (
    1.540353039338161e-4,
    1.333355814642844e-3,
    9.618129107628477e-3,
    5.550410866482158e-2,
    2.402265069591007e-1,
    6.931471805599453e-1,
    1.0,
)
_LEAST_EXPONENT, _EXPONENT_BIAS, _MANTISSA_BITS = -126.0, 127, 23


class Microkernels(NamedTuple):
    """Functions for one head dim and one type of KV, callable from numba code.

    Attributes
    ----------
    score : callable (keys, stride, table, first, at, query, scores, to)
        ``scores[to + i, lane] = sum over d of keys[slot_i, d] * query[d, lane]`` for KEYS slots ``table[first + i]``.
    greatest : callable (scores, token, top)
        ``top[lane]`` becomes the maximum of itself and of KEYS tokens' scores from ``token`` on.
    exponentials : callable (scores, token, top, total)
        Replaces KEYS tokens' scores by ``exp(score - top)`` and adds them to ``total[lane]``.
    accumulate : callable (values, stride, table, first, at, weights, token, row, out, column)
        Adds ``weights[token + i, row + j] * values[slot_i, column : column + width]`` to ``out[row + j, column : ...]``
        for KEYS tokens and ROWS rows.
    width : int
        Dimensions that one call of ``accumulate`` covers.
    """

    score: Callable[..., None]
    greatest: Callable[..., None]
    exponentials: Callable[..., None]
    accumulate: Callable[..., None]
    width: int


class _Emitter:
    """Emits LLVM instructions of one function body."""

    def __init__(self, context: Any, builder: ir.IRBuilder, half: bool = False) -> None:
        self.context, self.b, self.half = context, builder, half

    def data(self, array_type: Any, array: Any, offset: Any) -> Any:
        """Address of a flat array's element."""
        return self.b.gep(self.context.make_array(array_type)(self.context, self.b, array).data, [offset])

    def after(self, address: Any, elements: int) -> Any:
        return self.b.gep(address, [_I64(elements)])

    def vector(self, address: Any) -> Any:
        """Load LANES fp32."""
        return self.b.load(self.b.bitcast(address, _VF32.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        self.b.store(value, self.b.bitcast(address, _VF32.as_pointer()), align=4)

    def kv_scalar(self, address: Any) -> Any:
        """Load a number of the KV pool, spread over all lanes."""
        if self.half:
            wide = self.b.shl(self.b.zext(self.b.load(address), _I32), _I32(16))
            return self.spread(self.b.bitcast(wide, _F32))
        return self.spread(self.b.load(address))

    def kv_vector(self, address: Any) -> Any:
        """Load LANES numbers of the KV pool as fp32."""
        if not self.half:
            return self.vector(address)
        low = self.b.load(self.b.bitcast(address, _VI16.as_pointer()), align=2)
        return self.b.bitcast(self.b.shl(self.b.zext(low, _VI32), _constant(16, _VI32)), _VF32)

    def spread(self, scalar: Any) -> Any:
        one = self.b.insert_element(ir.Constant(_VF32, ir.Undefined), scalar, _I32(0))
        return self.b.shuffle_vector(one, ir.Constant(_VF32, ir.Undefined), _constant(0, _VI32))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a * b + c``, rounded once."""
        kind = ir.FunctionType(_VF32, [_VF32] * 3)
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, f"llvm.fma.v{LANES}f32"), [a, b, c])

    def floor(self, value: Any) -> Any:
        kind = ir.FunctionType(_VF32, [_VF32])
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, f"llvm.floor.v{LANES}f32"), [value])

    def slots(self, array_type: Any, table: Any, first: Any) -> list[Any]:
        """Load KEYS slot numbers, int64."""
        address = self.data(array_type, table, first)
        found = [self.b.load(self.after(address, i)) for i in range(KEYS)]
        return [self.b.sext(slot, _I64) if slot.type.width < 64 else slot for slot in found]

    def pairwise(self, values: list[Any], join: Callable[[Any, Any], Any]) -> Any:
        """Reduce a list to one value, neighbours first."""
        while len(values) > 1:
            odd = values[-1:] if len(values) % 2 else []
            values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=False)] + odd
        return values[0]

    def greater(self, a: Any, b: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def exp(self, x: Any) -> Any:
        """exp(x) for x <= 0: exactly 0 below 2**-126, a relative 2e-7 off above."""
        b = self.b
        t = b.fmul(x, _constant(_LOG2_E))
        # Unordered, so that a score that is not a number makes a row that is none, and is not taken for 0.
        normal = b.fcmp_unordered(">", t, _constant(_LEAST_EXPONENT))
        t = b.select(normal, t, _constant(_LEAST_EXPONENT))
        whole = self.floor(b.fadd(t, _constant(0.5)))
        part = b.fsub(t, whole)
        power = _constant(_EXP2[0])
        for coefficient in _EXP2[1:]:
            power = self.fma(power, part, _constant(coefficient))
        exponent = b.add(b.fptosi(whole, _VI32), _constant(_EXPONENT_BIAS, _VI32))
        scale = b.bitcast(b.shl(exponent, _constant(_MANTISSA_BITS, _VI32)), _VF32)
        return b.select(normal, b.fmul(power, scale), _constant(0.0))


def _constant(value: float, of: ir.VectorType = _VF32) -> ir.Constant:
    return ir.Constant(of, [ir.Constant(of.element, value)] * LANES)


def emit(dim: int, half: bool) -> Microkernels:
    """Make the functions for heads of ``dim`` (a multiple of LANES) and KV in fp32 or, if ``half``, bf16 as int16.

    Arrays are flat and contiguous; ``at`` is what is added to a slot's first element (the KV head), and a slot has
    ``stride`` elements. Indices are int64.
    """
    vectors = VECTORS if dim % (VECTORS * LANES) == 0 else 1
    return Microkernels(
        _score(dim, half), _greatest(), _exponentials(), _accumulate(dim, half, vectors), vectors * LANES
    )


def _score(dim: int, half: bool) -> Callable[..., None]:
    @intrinsic
    def score(typing: Any, keys: Any, stride: Any, table: Any, first: Any, at: Any, query: Any, scores: Any, to: Any):  # type: ignore[no-untyped-def]
        def body(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            keys_, stride_, table_, first_, at_, query_, scores_, to_ = args
            e = _Emitter(context, builder, half)
            starts = [builder.add(builder.mul(slot, stride_), at_) for slot in e.slots(table, table_, first_)]
            rows = [e.data(keys, keys_, start) for start in starts]
            columns = e.data(query, query_, _I64(0))
            sums = [_constant(0.0)] * KEYS
            for d in range(dim):
                column = e.vector(e.after(columns, d * LANES))
                sums = [e.fma(e.kv_scalar(e.after(row, d)), column, s) for row, s in zip(rows, sums, strict=True)]
            target = e.data(scores, scores_, builder.mul(to_, _I64(LANES)))
            for i, value in enumerate(sums):
                e.store(value, e.after(target, i * LANES))
            return context.get_dummy_value()

        return types.void(keys, stride, table, first, at, query, scores, to), body

    return cast("Callable[..., None]", score)


def _greatest() -> Callable[..., None]:
    @intrinsic
    def greatest(typing: Any, scores: Any, token: Any, top: Any):  # type: ignore[no-untyped-def]
        def body(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            e = _Emitter(context, builder)
            own = e.data(scores, args[0], builder.mul(args[1], _I64(LANES)))
            target = e.data(top, args[2], _I64(0))
            found = [e.vector(e.after(own, i * LANES)) for i in range(KEYS)]
            e.store(e.pairwise([*found, e.vector(target)], e.greater), target)
            return context.get_dummy_value()

        return types.void(scores, token, top), body

    return cast("Callable[..., None]", greatest)


def _exponentials() -> Callable[..., None]:
    @intrinsic
    def exponentials(typing: Any, scores: Any, token: Any, top: Any, total: Any):  # type: ignore[no-untyped-def]
        def body(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            e = _Emitter(context, builder)
            own = e.data(scores, args[0], builder.mul(args[1], _I64(LANES)))
            highest = e.vector(e.data(top, args[2], _I64(0)))
            sums = e.data(total, args[3], _I64(0))
            found = []
            for i in range(KEYS):
                address = e.after(own, i * LANES)
                found.append(e.exp(builder.fsub(e.vector(address), highest)))
                e.store(found[-1], address)
            e.store(builder.fadd(e.vector(sums), e.pairwise(found, builder.fadd)), sums)
            return context.get_dummy_value()

        return types.void(scores, token, top, total), body

    return cast("Callable[..., None]", exponentials)


def _accumulate(dim: int, half: bool, vectors: int) -> Callable[..., None]:
    @intrinsic
    def accumulate(  # type: ignore[no-untyped-def]
        typing: Any,
        values: Any,
        stride: Any,
        table: Any,
        first: Any,
        at: Any,
        weights: Any,
        token: Any,
        row: Any,
        out: Any,
        column: Any,
    ):
        def body(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            values_, stride_, table_, first_, at_, weights_, token_, row_, out_, column_ = args
            e = _Emitter(context, builder, half)
            own = builder.add(at_, column_)
            target = e.data(out, out_, builder.add(builder.mul(row_, _I64(dim)), column_))
            places = [[e.after(target, j * dim + v * LANES) for v in range(vectors)] for j in range(ROWS)]
            sums = [[e.vector(place) for place in line] for line in places]
            weight = e.data(weights, weights_, builder.add(builder.mul(token_, _I64(LANES)), row_))
            for i, slot in enumerate(e.slots(table, table_, first_)):
                start = e.data(values, values_, builder.add(builder.mul(slot, stride_), own))
                parts = [e.kv_vector(e.after(start, v * LANES)) for v in range(vectors)]
                for j in range(ROWS):
                    factor = e.spread(builder.load(e.after(weight, i * LANES + j)))
                    sums[j] = [e.fma(factor, part, total) for part, total in zip(parts, sums[j], strict=True)]
            for line, found in zip(places, sums, strict=True):
                for place, value in zip(line, found, strict=True):
                    e.store(value, place)
            return context.get_dummy_value()

        return types.void(values, stride, table, first, at, weights, token, row, out, column), body

    return cast("Callable[..., None]", accumulate)
