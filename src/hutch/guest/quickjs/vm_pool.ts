/** VMs that are free for the next execution. */

import { type HostFunctions, type Image, Vm } from "./vm.ts";

/** A VM that grew by more than this is dropped instead of reset, so that its memory returns to the system. */
const MAX_REUSABLE_GROWTH = 8 * 1024 * 1024;
const MAX_FREE_VMS = 64;
/** After this much dropped memory, the runner triggers a garbage collection. */
const COLLECT_AFTER_BYTES = 128 * 1024 * 1024;

export class VmPool {
  readonly #module: WebAssembly.Module;
  readonly #functions: HostFunctions;
  readonly #free: Vm[];
  #droppedBytes = 0;

  constructor(module: WebAssembly.Module, functions: HostFunctions, first: Image) {
    this.#module = module;
    this.#functions = functions;
    this.#free = [this.#create(first)];
  }

  #create(image: Image): Vm {
    const vm = new Vm(this.#module, image, this.#functions);
    vm.reset();
    return vm;
  }

  /** Returns a free VM, preferably one with `image`, or creates one. */
  take(image: Image): Vm {
    if (this.#free.length === 0) return this.#create(image);
    const index = this.#free.findLastIndex((vm) => vm.image === image);
    if (index >= 0) return this.#free.splice(index, 1)[0];
    const vm = this.#free.pop()!;
    vm.reset(image);
    return vm;
  }

  /** Resets a VM for the next execution, or drops it. */
  release(vm: Vm, isIntact: boolean): void {
    const { grown } = vm;
    if (isIntact && grown <= MAX_REUSABLE_GROWTH && this.#free.length < MAX_FREE_VMS) {
      vm.reset();
      this.#free.push(vm);
      return;
    }
    this.#droppedBytes += vm.image.heap.length + grown;
    if (this.#droppedBytes > COLLECT_AFTER_BYTES) {
      this.#droppedBytes = 0;
      (globalThis as { gc?: () => void }).gc?.();
    }
  }
}
