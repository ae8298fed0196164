/** Builds the memory images that VMs start from. */

import { type Image, SCRATCH_BYTES, Vm } from "../quickjs/vm.ts";

const BLANK: Image = {
  heap: new Uint8Array(0),
  stackPointer: 0,
  context: 0,
  undefinedBox: 0,
  scratch: 0,
  entry: {},
};

export function buildImage(
  module: WebAssembly.Module,
  hostFunctions: string,
  prelude: string,
  entries: string[],
): Image {
  const stub = (vm: Vm) => vm.undefined();
  const boot = () => {
    const vm = new Vm(module, BLANK, Object.fromEntries([...hostFunctions].map((name) => [name, stub])));
    vm.boot();
    return vm;
  };
  // Compile in another VM, because the source and the leftovers of the compiler would take three pages of the
  // image, and resetting a VM copies the whole image.
  const bytecode = boot().compile(prelude, "hutch:prelude.js");
  const vm = boot();
  vm.defineHostFunctions(hostFunctions);
  const undefinedBox = vm.undefined(), scratch = vm.allocate(SCRATCH_BYTES);
  const exports = vm.evaluateBytecode(bytecode);
  if (vm.isException(exports)) throw new Error("The prelude fails");
  const entry = Object.fromEntries(entries.map((name) => [name, vm.property(exports, name)]));
  const { stackPointer, contextAddress: context } = vm;
  const image = {
    heap: vm.capture().slice(stackPointer),
    stackPointer,
    context,
    undefinedBox,
    scratch,
    entry,
  };
  checkRandom(new Vm(module, image, {}));
  return image;
}

/**
 * Checks the offset RANDOM_STATE. With a wrong offset, Math.random would return the same numbers after each
 * reset.
 */
function checkRandom(vm: Vm): void {
  const draw = () => {
    vm.reset();
    vm.limit(1 << 20);
    return vm.toNumber(vm.evaluate("Math.random()", "check.js"));
  };
  if (draw() === draw()) throw new Error("Math.random is not reseeded: JSContext has another layout");
}
