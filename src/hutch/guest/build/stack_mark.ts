/**
 * Records the lowest stack pointer in a global, so that a reset clears exactly the used part of the C stack.
 *
 * A function of C lowers the stack pointer when it is entered or calls `alloca`, and raises it again at its
 * end. After every assignment that may lower it, the patched code updates the lowest value.
 */

const I32_CONST = 0x41, I32_ADD = 0x6a, I32_SUB = 0x6b, GLOBAL_GET = 0x23, GLOBAL_SET = 0x24;

interface Instruction {
  opcode: number;
  from: number;
  to: number;
}

/** Reads the instructions of a function's body, which follow its local declarations. */
function* instructions(body: Uint8Array): Generator<Instruction> {
  let at = 0;
  const u32 = () => {
    let value = 0, shift = 0;
    for (;;) {
      const byte = body[at++];
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
      shift += 7;
    }
  };
  const skip = (count: number) => {
    for (; count > 0; count--) u32();
  };
  for (let groups = u32(); groups > 0; groups--) {
    u32();
    at++;
  }
  while (at < body.length) {
    const from = at, opcode = body[at++];
    if (opcode === 0x0e) skip(u32() + 1); // br_table
    else if (opcode === 0x43) at += 4; // f32.const
    else if (opcode === 0x44) at += 8; // f64.const
    else if (opcode === 0xfc) {
      const extended = u32();
      if (extended > 17) throw new Error(`unknown instruction 0xfc ${extended}`);
      if (extended > 7) skip([8, 10, 12, 14].includes(extended) ? 2 : 1);
    } else skip(immediates(opcode));
    yield { opcode, from, to: at };
  }
  if (at !== body.length) throw new Error("a function ends within an instruction");
}

/** Returns how many LEB128 numbers follow an opcode. */
function immediates(opcode: number): number {
  if (opcode === 0x11 || (opcode >= 0x28 && opcode <= 0x3e)) return 2; // call_indirect, loads and stores
  if (opcode >= 0x02 && opcode <= 0x04) return 1; // block, loop, if
  if ([0x0c, 0x0d, 0x10, 0x3f, 0x40, 0x41, 0x42].includes(opcode)) return 1; // br, call, memory, constants
  if (opcode >= 0x20 && opcode <= 0x26) return 1; // locals, globals, tables
  const isPlain = opcode <= 0x01 || opcode === 0x05 || opcode === 0x0b || opcode === 0x0f ||
    opcode === 0x1a ||
    opcode === 0x1b || (opcode >= 0x45 && opcode <= 0xc4);
  if (!isPlain) throw new Error(`unknown instruction 0x${opcode.toString(16)}`);
  return 0;
}

/** Returns the function's body with `lowest = min(lowest, stackPointer)` where the stack pointer may fall. */
export function markLowestStack(body: Uint8Array, stackPointer: number[], lowest: number[]): Uint8Array {
  // global.get sp; global.get lowest; i32.lt_u; if; global.get sp; global.set lowest; end
  const mark = [GLOBAL_GET, ...stackPointer, GLOBAL_GET, ...lowest, 0x49, 0x04, 0x40];
  mark.push(GLOBAL_GET, ...stackPointer, GLOBAL_SET, ...lowest, 0x0b);
  const out: number[] = [];
  let copied = 0, last: Instruction | undefined, beforeLast: Instruction | undefined;
  for (const each of instructions(body)) {
    const isTarget = each.opcode === GLOBAL_SET &&
      stackPointer.every((byte, i) => body[each.from + 1 + i] === byte);
    if (isTarget && !raises(body, beforeLast, last)) {
      out.push(...body.subarray(copied, each.to), ...mark);
      copied = each.to;
    }
    [beforeLast, last] = [last, each];
  }
  return copied ? Uint8Array.from([...out, ...body.subarray(copied)]) : body;
}

/**
 * Returns true if these instructions release a frame: they add a positive constant, or subtract a negative
 * one.
 */
function raises(body: Uint8Array, constant?: Instruction, operation?: Instruction): boolean {
  if (constant?.opcode !== I32_CONST) return false;
  const isNegative = (body[constant.to - 1] & 0x40) !== 0;
  return operation?.opcode === (isNegative ? I32_SUB : I32_ADD);
}
